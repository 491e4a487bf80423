"""What is launched while a program runs, and how long that takes on the card."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .. import _C
from ..device import current_stream, fallback_counts
from ..execution.launches import Launch, listening
from .attribution import Row, attribute


@dataclass
class Recording:
    """``milliseconds`` by which the stream went on, all told; ``launches`` of compiled code, in order.

    ``starts`` counts how often the host called compiled code for them: kernels of a graph with collectives between them
    are one call. ``eager_launches`` counts ops outside of compiled code, ``fallbacks`` those that the CPU did. Their
    time, that of transfers, and what launches wait for each other's writes, is ``other_us``. ``communication_ms`` is
    the part of ``milliseconds`` in which the stream only waited for collectives.
    """

    launches: list[Launch] = field(default_factory=list)
    milliseconds: float = 0.0
    communication_ms: float = 0.0
    starts: int = 0
    eager_launches: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """Where the time of the launches goes; see :func:`attribute`."""
        return attribute(self.launches)

    @property
    def launched_us(self) -> float:
        return sum(time["us"] for launch in self.launches for time in launch.plan.step_times())

    @property
    def other_us(self) -> float:
        return (self.milliseconds - self.communication_ms) * 1000 - self.launched_us


@contextmanager
def record() -> Iterator[Recording]:
    """Collects what is launched inside; the numbers are there when it ends. Times are those of the current stream."""
    stream, found = current_stream(), Recording()
    communication = stream.communication_time()
    starts = _C.launch_starts()
    start, eager, fallbacks = stream.modelled_time(), _C.kernel_counts()["launched"], fallback_counts()
    with listening(found.launches.append):
        yield found
    found.milliseconds = stream.modelled_time() - start
    found.communication_ms = stream.communication_time() - communication
    found.starts = _C.launch_starts() - starts
    found.eager_launches = _C.kernel_counts()["launched"] - eager
    counted = {op: count - fallbacks.get(op, 0) for op, count in fallback_counts().items()}
    found.fallbacks = {op: count for op, count in counted.items() if count}
