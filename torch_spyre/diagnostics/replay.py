"""``spyre replay``: one captured kernel alone, for any number of cores, in any mode of the card."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from .. import _C
from .._inductor import config
from .._inductor.compiler import compile_kernel
from .._inductor.loop_ir import from_json
from ..caching.version import compiler_version
from ..execution import kernel as kernels
from ..execution.launches import Launch
from ..kernel_types import CompiledDescription
from ..timing import Row, attribute
from .captures import Capture, hardware_in_force, printable
from .errors import CaptureError, KernelFailed
from .launch import Results, place, run


@dataclass(frozen=True)
class Options:
    """``cores``, ``planning``: others than were captured; ``as_captured``: the card program as it is in the file."""

    cores: int | None = None
    planning: str | None = None
    as_captured: bool = False
    seed: int = 0
    repeat: int = 1


@dataclass(frozen=True)
class Difference:
    """Between a result and the captured one."""

    name: str
    elements: int
    different: int
    most: float  # the largest distance of two elements

    def __str__(self) -> str:
        return f"{self.name}: {self.different} of {self.elements} elements differ, by {self.most:.6g} at most"


@dataclass(frozen=True)
class Replayed:
    """``differences`` is None where there is nothing to compare with, ``rows`` has what takes longest first."""

    capture: Capture
    options: Options
    rows: list[Row]
    steps: int
    microseconds: float
    host_seconds: float  # the fastest of the runs, on this machine
    stable: bool  # all runs gave the same bits
    results: Results
    differences: list[Difference] | None

    def report(self, top: int = 10) -> str:
        return "\n".join([*_head(self), "", *_table(self, top), "", *_comparison(self)])


def replay(capture: Capture, options: Options | None = None) -> Replayed:
    """Compiles a captured kernel, launches it and compares. Raises CaptureError, KernelFailed, and what the card raises
    for this kernel."""
    options = options or Options()
    if options.as_captured and (options.cores or options.planning):
        raise CaptureError("the card program as it was captured has its cores and its planning already")
    plan, code = _captured_plan(capture) if options.as_captured else _compiled_plan(capture, options)
    runs, seconds = [], []
    for _ in range(max(options.repeat, 1)):
        start = time.perf_counter()
        runs.append(run(capture, plan, code, options.seed))
        seconds.append(time.perf_counter() - start)
    first = runs[0].results
    rows = attribute([Launch(plan, code)]) if plan is not None else []
    comparable = capture.expected is not None and _C.card_mode() != "timing"
    return Replayed(
        capture,
        options,
        rows,
        sum(row.count for row in rows),
        runs[0].microseconds,
        min(seconds),
        all(not _differences(capture, first, other.results) for other in runs[1:]),
        first,
        _differences(capture, capture.expected, first) if comparable and capture.expected is not None else None,
    )


def _captured_plan(capture: Capture) -> tuple[_C.JobPlan | None, CompiledDescription]:
    if capture.code is None:
        raise CaptureError("the capture has no card program: the kernel was not compiled when it was made")
    try:
        plan, code = kernels.prepare(cast(CompiledDescription, capture.code))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise CaptureError(f"code: {type(error).__name__}: {error}") from None
    outputs = [(out["size"], out["stride"], out["dtype"]) for out in code["outputs"]]
    if outputs != [_place(buffer) for buffer in capture.kernel.outputs()]:
        raise CaptureError("code: its outputs are not those of the kernel")
    return plan, code


def _place(buffer: Any) -> tuple[list[int], list[int], str]:
    return list(buffer.size), list(buffer.stride), str(buffer.dtype).removeprefix("torch.")


def _compiled_plan(capture: Capture, options: Options) -> tuple[_C.JobPlan | None, CompiledDescription]:
    place(capture.kernel, capture.signature)  # arguments that cannot be are not planned for either
    with _settings(capture, options):
        try:
            code = compile_kernel(from_json(capture.kernel.to_json()), capture.signature)
        except Exception as error:
            raise KernelFailed(f"the compiler fails on this kernel: {type(error).__name__}: {error}") from error
        return kernels.prepare(code)


@contextmanager
def _settings(capture: Capture, options: Options) -> Iterator[None]:
    """Those of the capture, save what is asked for."""
    cores = options.cores or min(capture.settings["sencores"], _C.card_cores(-1))
    if not 1 <= cores <= _C.card_cores(-1):
        raise CaptureError(f"this card has 1 to {_C.card_cores(-1)} cores, not {cores}")
    planning = options.planning or capture.settings["planning"]
    with config.patch(capture.settings | {"sencores": cores, "planning": planning}):
        yield


def _differences(capture: Capture, expected: Results, found: Results) -> list[Difference]:
    names = [f"output {i}" for i in range(len(expected.outputs))]
    names += [f"input {i} as it was written" for i in expected.written]
    pairs = zip(names, expected.all(), found.all(), strict=True)
    return [difference for name, a, b in pairs if (difference := _difference(name, a, b)) is not None]


def _difference(name: str, expected: torch.Tensor, found: torch.Tensor) -> Difference | None:
    a, b = (
        tensor.contiguous().reshape(-1).view(torch.uint8).reshape(tensor.numel(), -1) for tensor in (expected, found)
    )
    unequal = (a != b).any(1) if len(a) else torch.zeros(0, dtype=torch.bool)
    if not unequal.any():
        return None
    distance = (expected.reshape(-1).double() - found.reshape(-1).double()).abs()[unequal]
    return Difference(name, len(a), int(unequal.sum()), float(distance.nan_to_num(float("inf")).max()))


def _head(replayed: Replayed) -> list[str]:
    capture, options = replayed.capture, replayed.options
    made = capture.made_by
    lines = [f"kernel {capture.kernel.name}, captured {made['time']} with torch_spyre {made['torch_spyre']}"]
    if options.as_captured:
        how = "the card program as it was captured"
    else:
        cores = options.cores or min(capture.settings["sencores"], _C.card_cores(-1))
        planning = (options.planning or capture.settings["planning"]).replace("_", " ")
        how = f"compiled for {cores} cores, planned {planning}"
    values = "captured inputs" if capture.contents else f"random inputs of seed {options.seed}"
    lines.append(f"{how}; {_C.card_mode()} mode; {'no values' if _C.card_mode() == 'timing' else values}")
    if capture.hardware["sha256"] != hardware_in_force()["sha256"]:
        lines.append(f"captured for another hardware description, {capture.hardware['name']}: times are of this one")
    if made["compiler"] != compiler_version() and not options.as_captured:
        lines.append("captured with another version of the compiler: its plan may have been another one")
    return lines


def _table(replayed: Replayed, top: int) -> list[str]:
    count = f"{replayed.steps} step{'s' * (replayed.steps != 1)}"
    lines = [f"modelled time {replayed.microseconds:.3f} us in {count}; {replayed.host_seconds * 1000:.1f} ms here"]
    total = sum(row.us for row in replayed.rows) or 1.0
    for row in replayed.rows[:top]:
        what = f"{row.count} x {row.op} {'x'.join(map(str, row.extents))}, {row.bound_by}"
        lines.append(f"{row.us:12.3f} us {row.us / total:6.1%}  {what}  {_line(row, replayed.capture)}".rstrip())
    if len(replayed.rows) > top:
        rest = sum(row.us for row in replayed.rows[top:])
        lines.append(f"{rest:12.3f} us {rest / total:6.1%}  {len(replayed.rows) - top} others")
    return lines


def _line(row: Row, capture: Capture) -> str:
    """As the capture has it: the file may be another one here, or anything at all."""
    at = re.match(r'File "(.*)", line (\d+)', row.source)
    where = f"{Path(at[1]).name}:{at[2]}" if at else row.source
    return printable(f"{where} {capture.sources.get(row.source, '')}").strip()


def _comparison(replayed: Replayed) -> list[str]:
    lines = []
    if replayed.options.repeat > 1:
        same = "the same bits" if replayed.stable else "DIFFERENT bits"
        lines.append(f"{replayed.options.repeat} runs gave {same}")
    if replayed.differences is None:
        lines.append("no captured results to compare with")
    elif not replayed.differences:
        lines.append("results equal the captured ones, bit for bit")
    else:
        lines += map(str, replayed.differences)
    return lines
