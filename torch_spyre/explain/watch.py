"""What happens while a program is compiled and runs: launches, eager ops, fallbacks, graph breaks, recompiles."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch._dynamo.utils import get_compilation_metrics
from torch.multiprocessing.reductions import StorageWeakRef

from .. import _C
from ..compare.source import from_trace, is_library
from ..device import current_stream
from ..execution.kernel import Prepared, forget_prepared, observers
from ..execution.launches import Launch, listening

_GRAPH_BREAKS = "torch._dynamo.symbolic_convert.__graph_breaks"


@dataclass(frozen=True)
class TimedLaunch:
    """A launch of compiled code, and when it began and ended by the clock of its stream."""

    launch: Launch
    stream: int
    start_us: float
    us: float


@dataclass(frozen=True)
class EagerCall:
    """An op outside of compiled code. ``reason``: why the CPU did it; None where the card did."""

    aten: str
    source: str
    stream: int
    start_us: float
    us: float
    reason: str | None


@dataclass(frozen=True)
class Notice:
    """A message of Dynamo: the line it is about, and what it says."""

    source: str
    text: str


@dataclass
class Watched:
    """What ran on the current stream, in order."""

    launches: list[TimedLaunch] = field(default_factory=list)
    kernels: list[Launch] = field(default_factory=list)  # the first launch of each plan
    eager: list[EagerCall] = field(default_factory=list)
    us: float = 0.0  # by which the stream went on
    numbers: dict[int, int] = field(default_factory=dict)  # by the identity of a plan: its place in ``kernels``

    def launched(self, launch: TimedLaunch) -> None:
        self.launches.append(launch)
        if self.numbers.setdefault(id(launch.launch.plan), len(self.kernels)) == len(self.kernels):
            self.kernels.append(launch.launch)


@dataclass
class Notices:
    """What Dynamo said."""

    graph_breaks: list[Notice] = field(default_factory=list)
    recompiles: list[Notice] = field(default_factory=list)
    # By the identity of a plan: the storages of its inputs, None for one that is no longer there.
    arguments: dict[int, list[int | None]] = field(default_factory=dict)
    compiles: int = 0
    host_s: float = 0.0  # of the host, for all of them


@dataclass(frozen=True)
class Failure:
    """What stopped a program, and the line of it where it did, as FX writes it."""

    text: str
    source: str

    @staticmethod
    def of(error: BaseException) -> Failure:
        """The line that the message names, as a compiler's does; else the innermost one of the program that ran."""
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        causes = [each.__traceback__ for each in (error, error.__cause__) if each is not None]
        traces = [str(error), *("".join(traceback.format_tb(each)) for each in causes)]
        lines = [line for line in map(from_trace, traces) if line.file and not is_library(line.file)]
        source = f'File "{lines[0].file}", line {lines[0].number}, in {lines[0].function}' if lines else ""
        return Failure(said, source)


@contextmanager
def watching() -> Iterator[Watched]:
    """Collects what runs inside, on the current stream."""
    found, clock = Watched(), _Clock()
    begun: list[float] = []  # when ops that the host does began, the innermost last

    def launched(launch: Launch) -> None:
        start, us = clock.just_took(launch.plan)
        found.launched(TimedLaunch(launch, clock.stream.stream_id, start, us))

    def eager(event: str, op: str, plan: _C.JobPlan | None, reason: str) -> None:
        if event == "begins":
            begun.append(clock.now())
            return
        if plan is not None:
            start, us = clock.just_took(plan)
        else:
            start = begun.pop()
            us = clock.now() - start
        why = reason.strip() if plan is None else None
        found.eager.append(EagerCall(_dotted(op), _source(), clock.stream.stream_id, start, us, why))

    _C.set_op_listener(eager)
    try:
        with listening(launched):
            yield found
    finally:
        _C.set_op_listener(None)
        found.us = clock.now()


@contextmanager
def noticing() -> Iterator[Notices]:
    """Collects graph breaks and recompiles, and what kernels are given: all of them are prepared again."""
    found, before = Notices(), {id(each) for each in get_compilation_metrics()}
    given: list[tuple[_C.JobPlan | None, list[StorageWeakRef]]] = []

    def prepared(kernel: Prepared) -> None:
        given.append((kernel.plan, [StorageWeakRef(each.untyped_storage()) for each in kernel.inputs]))

    forget_prepared()
    observers.append(prepared)
    try:
        with _messages(_GRAPH_BREAKS, found.graph_breaks, _graph_break):
            yield found
    finally:
        observers.remove(prepared)
    for plan, storages in given:
        found.arguments[id(plan)] = [None if each.expired() else each.cdata for each in storages]
    for each in get_compilation_metrics():
        if id(each) in before:
            continue
        found.compiles += 1
        found.host_s += (each.duration_us or 0) / 1e6
        if each.recompile_reason:
            source = f'File "{each.co_filename}", line {each.co_firstlineno}, in {each.co_name}'
            found.recompiles.append(Notice(source, each.recompile_reason))


class _Clock:
    """The current stream's, in microseconds since the beginning."""

    def __init__(self) -> None:
        self.stream, self.start = current_stream(), 0.0
        self.start = self.now()

    def now(self) -> float:
        return self.stream.modelled_time() * 1000 - self.start

    def just_took(self, plan: _C.JobPlan) -> tuple[float, float]:
        """When a plan that was launched last began, and how long it takes."""
        us = sum(time["us"] for time in plan.step_times())
        return self.now() - us, us


def _source() -> str:
    """The innermost line that is neither PyTorch's, nor this package's, nor generated, as FX writes it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:  # a thread of autograd's
        node = torch._C._current_autograd_node()
        return "" if node is None else f"backward: {node.name()}"
    return f'File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'


def _dotted(op: str) -> str:
    """``aten::mm`` and ``aten::add.Tensor`` as overloads are written in Python."""
    name = op.replace("::", ".")
    return name if name.count(".") > 1 else f"{name}.default"


class _Handler(logging.Handler):
    def __init__(self, found: list[Notice], read: re.Pattern[str]) -> None:
        super().__init__(logging.DEBUG)
        self.found, self.read = found, read

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        places = [at for at in self.read.finditer(text) if not is_library(at["file"])]
        source = f'File "{places[-1]["file"]}", line {places[-1]["line"]}, in {places[-1]["name"]}' if places else ""
        self.found.append(Notice(source, text))


_graph_break = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')


@contextmanager
def _messages(name: str, found: list[Notice], read: re.Pattern[str]) -> Iterator[None]:
    """Collects what a logger of Dynamo says, whether or not it is shown."""
    logger = logging.getLogger(name)
    handler, level, propagate = _Handler(found, read), logger.level, logger.propagate
    shown = logger.isEnabledFor(logging.DEBUG)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = shown
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
