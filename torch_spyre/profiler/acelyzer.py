"""What ``acelyzer``, the trace analyzer of the real card, reads beside a trace."""

from __future__ import annotations

import json
from pathlib import Path

from .trace import device_rows

CORE_MHZ = 1100.0
"""The clock of the cores that ``acelyzer`` goes by unless it is told another with ``--freq``."""


def export_ideal_cycles(trace: str | Path, directory: str | Path, core_mhz: float = CORE_MHZ) -> None:
    """Write the directory that ``acelyzer -c`` takes the ideal cycles of a trace's kernels from, for ``PT_Util``.

    A kernel's ideal is its multiply-adds at the full rate of the matrix units of all cores, as in ``args.pt_util``.
    """
    for row in device_rows(trace):
        if row.category != "kernel":
            continue
        if Path(row.name).name != row.name:
            raise ValueError(f"a kernel of the trace has a name that is no file name: {row.name!r}")
        kernel = Path(directory) / "inductor-spyre" / row.name / "perf"
        kernel.mkdir(parents=True, exist_ok=True)
        entry = {"ideal_cycles": round(float(row.args["ideal_us"]) * core_mhz, 3), "op_category": str(row.args["op"])}
        (kernel / "ideal_cycles.json").write_text(json.dumps([entry]))
