"""What happens while a program is compiled and runs: launches, eager ops, fallbacks, graph breaks, recompiles."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch
from torch._dynamo.utils import get_compilation_metrics
from torch._inductor.runtime.cache_dir_utils import cache_dir

from .. import _C
from ..device import current_stream
from ..execution.launches import Launch, listening

_PACKAGES = tuple(str(Path(module.__file__ or "").parent) for module in (torch, sys.modules["torch_spyre"]))
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
    eager: list[EagerCall] = field(default_factory=list)
    us: float = 0.0  # by which the stream went on


@dataclass
class Notices:
    """What Dynamo said."""

    graph_breaks: list[Notice] = field(default_factory=list)
    recompiles: list[Notice] = field(default_factory=list)


@contextmanager
def watching() -> Iterator[Watched]:
    """Collects what runs inside, on the current stream."""
    found, clock = Watched(), _Clock()

    def launched(launch: Launch) -> None:
        before, now = clock.lap()
        found.launches.append(TimedLaunch(launch, clock.stream.stream_id, before, now - before))

    def eager(op: str, plan: _C.JobPlan | None, reason: str) -> None:
        before, now = clock.lap()
        took = now - before if plan is None else sum(time["us"] for time in plan.step_times())
        found.eager.append(EagerCall(_dotted(op), _source(), took, reason.strip() if plan is None else None))

    _C.set_op_listener(eager)
    try:
        with listening(launched):
            yield found
    finally:
        _C.set_op_listener(None)
        found.us = clock.now() - clock.start


@contextmanager
def noticing() -> Iterator[Notices]:
    """Collects graph breaks and recompiles."""
    found, before = Notices(), {id(each) for each in get_compilation_metrics()}
    with _messages(_GRAPH_BREAKS, found.graph_breaks, _graph_break):
        yield found
    for each in get_compilation_metrics():
        if id(each) not in before and each.recompile_reason:
            source = f'File "{each.co_filename}", line {each.co_firstlineno}, in {each.co_name}'
            found.recompiles.append(Notice(source, each.recompile_reason))


class _Clock:
    """The current stream's, in microseconds since the beginning."""

    def __init__(self) -> None:
        self.stream = current_stream()
        self.start = self.last = self.now()

    def now(self) -> float:
        return self.stream.modelled_time() * 1000

    def lap(self) -> tuple[float, float]:
        """When it was asked last, and now; both since the beginning."""
        before, self.last = self.last, self.now()
        return before - self.start, self.last - self.start


def _source() -> str:
    """The innermost line that is neither PyTorch's, nor this package's, nor generated, as FX writes it."""
    theirs = (*_PACKAGES, cache_dir())
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(theirs):
        frame = frame.f_back
    if frame is None:
        return ""
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
        places = [at for at in self.read.finditer(text) if not at["file"].startswith(_PACKAGES)]
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
