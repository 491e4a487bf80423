"""One sample of one op on the card: is it right, and did the card do it itself?"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_leaves, tree_map

from torch_spyre import _C
from torch_spyre._inductor.loop_ir import from_json
from torch_spyre.execution import kernel
from torch_spyre.ops.table import OPS

from .bounds import compare
from .ops import ARGUMENTS_ON_HOST, CROSSES, SHAPES_ONLY, Op

MODES = ("eager", "compiled")
HELD = {  # dtypes that the card has a format for
    *(torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex64),
}


@dataclass
class Result:
    """``outcome`` is right, wrong (values, shapes, dtypes, devices), error or crash; and two that do not count:
    skipped, where PyTorch itself raises, and refused, where the card says that it has no such numbers (a result in
    float64, or an int64 beyond 32 bits) or no such strides (channels_last, asked for by name).

    ``fallbacks`` are the ops that ran on the CPU, as the device counts them; ``trips`` copies between host and card
    that nobody counted. ``units`` are those of the card that worked, ``breaks`` the breaks of a compiled graph.
    Values are ``compared`` unless they are random or memory that nothing was written to.
    """

    op: str
    mode: str
    dtype: str
    sample: int
    call: str = ""
    outcome: str = "right"
    note: str = ""
    fallbacks: dict[str, int] = field(default_factory=dict)
    trips: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    breaks: int = 0
    compared: bool = True

    @property
    def native(self) -> bool:
        return not self.elsewhere()

    def elsewhere(self) -> list[str]:
        """What did not happen on the card."""
        failed = [self.outcome] if self.outcome in ("error", "crash") else []
        return [*failed, *self.fallbacks, *(f"uncounted copy {way}" for way in self.trips)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def check(op: Op, dtype: torch.dtype, number: int, sample: SampleInput, mode: str) -> Result:
    result = Result(op.name, mode, str(dtype).removeprefix("torch."), number, describe(op, sample))
    given = (sample.input, sample.args, sample.kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _check(op, given, mode, result)
    return result


def _check(op: Op, given: Call, mode: str, result: Result) -> None:
    def on_card() -> Call:
        if op.name in ARGUMENTS_ON_HOST:
            return _to_card(given[0]), given[1], given[2]
        return tree_map(_to_card, given)

    def on_host() -> Call:
        return tree_map(_to_host, on_card())

    try:
        like = _apply(op.function, on_host())
        random = not _alike(like, _apply(op.function, on_host()))
    except Exception as error:
        result.outcome, result.note = "skipped", _text(error)
        return
    try:
        run = _runner(op, mode)
        if mode == "compiled":
            with _compiling(result):
                run(*on_card())
        inputs = on_card()
        with _watched(result):
            got = run(*inputs)
            torch.spyre.synchronize()
        if not any(isinstance(x, Tensor) for x in tree_leaves(like)):
            result.trips = []  # what Python asked for
        elif op.name in CROSSES:
            result.trips = [way for way in result.trips if way not in CROSSES[op.name][0].split()]
        _expect_devices(got, like)
        found = tree_map(_to_host, got)
    except _Wrong as wrong:
        result.outcome, result.note = "wrong", str(wrong)
        return
    except Exception as error:
        result.outcome, result.note = "refused" if _refusal(error, like) else "error", _text(error)
        return
    result.compared = not random and op.name not in SHAPES_ONLY
    if why := compare(op, found, like, on_host, not result.compared, fell_back=bool(result.fallbacks)):
        result.outcome, result.note = "wrong", why


def _apply(function: Callable[..., Any], call: Call) -> Any:
    first, args, kwargs = call
    return function(first, *args, **kwargs)


def _alike(results: Any, again: Any) -> bool:
    """Whether two calls gave the same; one that draws random numbers does not."""
    pairs = zip(tree_leaves(results), tree_leaves(again), strict=True)
    tensors = [(x, y) for x, y in pairs if isinstance(x, Tensor) and x.layout == torch.strided]
    return all(x.shape == y.shape and torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in tensors)


def _runner(op: Op, mode: str) -> Callable[..., Any]:
    def run(first: Any, args: Any, kwargs: Any) -> Any:
        return op.function(first, *args, **kwargs)

    # Shapes that change from call to call have tests of their own: each sample is its own graph.
    return torch.compile(run, dynamic=False) if mode == "compiled" else run


class _Wrong(Exception):
    """A result that is not where it should be."""


def _expect_devices(got: Any, like: Any) -> None:
    """Results lie on the card, apart from those that it has no format for."""
    for found, wanted in zip(tree_leaves(got), tree_leaves(like), strict=False):
        if isinstance(found, Tensor) and found.device.type != "spyre" and wanted.dtype in HELD:
            raise _Wrong(f"a result on {found.device}")


def _refusal(error: Exception, like: Any) -> bool:
    """Whether the op raised because it makes numbers that the card is known not to have."""
    text = str(error)
    if "does not fit the card, which keeps int64 in 32 bits" in text:
        return True
    dtypes = {x.dtype for x in tree_leaves(like) if isinstance(x, Tensor)}
    return "Spyre backend" in text and any(dtype not in HELD for dtype in dtypes)


@contextmanager
def _compiling(result: Result) -> Iterator[None]:
    """Notes where a graph breaks, and which units its kernels use."""
    counters.clear()
    with _noting_units(result):
        yield
    result.breaks = sum(counters["graph_break"].values())


@contextmanager
def _watched(result: Result) -> Iterator[None]:
    """Notes what runs on the CPU, what crosses to it, and which units work."""
    _C.forget_kernels()
    torch.spyre.reset_fallback_counts()
    log = _Log()
    with _noting_units(result):
        yield
    result.fallbacks = dict(sorted(torch.spyre.fallback_counts().items()))
    result.trips = [] if result.fallbacks else log.trips()


@contextmanager
def _noting_units(result: Result) -> Iterator[None]:
    units, prepared = set(result.units), kernel._prepared

    def noting(text: str, *rest: Any) -> Any:
        units.update(OPS[op.name].unit for op in from_json(text).ops)
        return prepared(text, *rest)

    with mock.patch.object(kernel, "_prepared", noting):
        yield
    result.units = sorted(units)


class _Log:
    """What the device logs from now on, if ``TORCH_SPYRE_DEBUG`` and ``SPYRE_LOG_FILE`` ask it to."""

    def __init__(self) -> None:
        self.path = os.environ.get("SPYRE_LOG_FILE", "") if os.environ.get("TORCH_SPYRE_DEBUG") == "1" else ""
        self.start = os.path.getsize(self.path) if self.path else 0

    def trips(self) -> list[str]:
        """Copies between host and card."""
        if not self.path:
            return []
        with open(self.path) as file:
            file.seek(self.start)
            lines = [line.removeprefix("[spyre] copy to ") for line in file if line.startswith("[spyre] copy to ")]
        ways = [("in" if line.startswith("spyre") else "out", " from cpu" in line) for line in lines]
        return sorted({way for way, from_cpu in ways if from_cpu or way == "out"})


def _to_card(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to("spyre")
    if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
        return torch.device("spyre")
    return value


def _to_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _text(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:250]


def describe(op: Op, sample: SampleInput) -> str:
    """The call, with dtypes and shapes for tensors."""

    def text(value: Any) -> str:
        if isinstance(value, Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(text, value))}]"
        return repr(value)

    given = [text(value) for value in (sample.input, *sample.args)]
    given += [f"{name}={text(value)}" for name, value in sample.kwargs.items()]
    return f"{op.name}({', '.join(given)})"[:300]
