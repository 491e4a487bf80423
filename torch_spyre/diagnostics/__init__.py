"""What is kept of a kernel that failed, or that somebody wants to look at: reports, captures, replay.

``torch.spyre`` has the functions here; what they need is imported when they are called.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .captures import Captured


def capture(path: str | Path, kernel: str | None = None, values: bool = True) -> AbstractContextManager[Captured]:
    """Inside, the first kernel that runs is written to a file, which ``spyre replay`` runs alone.

    ``kernel``: the first one whose name contains this. If ``path`` is a directory, all of them are written there, one
    file for each kernel and layout of its inputs. With ``values`` a file has inputs and results too. Kernels are
    prepared again inside, from the caches on disk. Raises CaptureError where no such kernel ran.
    """
    from . import captures

    return captures.capturing(Path(path), kernel, values)


def get_diagnostic_report(output_dir: str | Path | None = None) -> dict[str, Any]:
    """What is known of this process: its last failure, if it was collected, and the state of compiler and cards.

    With ``output_dir`` the report is also written there, as ``TORCH_SPYRE_FFDC=1`` writes one for every failure;
    ``report["collector"]["path"]`` is the file.
    """
    from . import ffdc

    return ffdc.get_diagnostic_report(output_dir)


def collect_failures() -> None:
    """``TORCH_SPYRE_FFDC=1``: a report for every failure; ``TORCH_SPYRE_CAPTURE=DIR``: a file for every kernel."""
    given = os.environ.get("TORCH_SPYRE_FFDC", "")
    if given not in ("", "0", "1"):
        raise ValueError(f"TORCH_SPYRE_FFDC={given!r}: expected 0 or 1")
    if given == "1":
        from . import ffdc

        ffdc.install()
    if folder := os.environ.get("TORCH_SPYRE_CAPTURE"):
        from . import captures

        captures.capture_all(Path(folder), os.environ.get("TORCH_SPYRE_CAPTURE_KERNEL") or None)
