"""Streams and events. Time on them is modelled time: how long the real card would take."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from .. import _C
from ..constants import DEVICE_NAME

_DEVICE_TYPE = 20  # c10::DeviceType::PrivateUse1
_FIRST_HIGH_PRIORITY, _LAST = 33, 64


def _index(device: Any) -> int:
    from . import _index_of

    return _index_of(device)


class Stream(torch.Stream):
    """A FIFO of work on one card; also a context manager that makes it the current stream.

    Ids: 0 is the default stream, 1 to 32 have low priority, 33 to 64 high. Any non-zero ``priority`` asks for the
    high-priority pool; pools are handed out round-robin.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> Stream:
        if given:
            _check_id(given.get("stream_id", 0))
            return super().__new__(cls, **given)
        return super().__new__(cls, torch.device(DEVICE_NAME, _index(device)), priority=priority)

    def device(self) -> torch.device:  # type: ignore[override]
        """The card; a method here, as torch-spyre users know it."""
        return torch.device(DEVICE_NAME, self.device_index)

    @property
    def priority(self) -> int:
        """0, or -1 for high priority."""
        return -1 if self.stream_id >= _FIRST_HIGH_PRIORITY else 0

    def add_callback(self, function: Callable[[], None]) -> None:
        """Call a Python function when all work queued so far is done."""
        _C.add_callback(self.device_index, self.stream_id, function)

    def modelled_time(self) -> float:
        """Milliseconds of card time that this stream's work takes so far."""
        return _C.stream_time_ns(self.device_index, self.stream_id) / 1e6

    def communication_time(self) -> float:
        """Milliseconds of that in which the stream had nothing to do but wait for collectives."""
        return _C.stream_outside_ns(self.device_index, self.stream_id) / 1e6

    def __repr__(self) -> str:
        return f"<torch.spyre.Stream device={self.device()} id={self.stream_id} priority={self.priority}>"


class _OfThisDevice(type):
    def __instancecheck__(cls, event: Any) -> bool:
        return isinstance(event, torch.Event) and event.device.type == DEVICE_NAME


class Event(torch.Event, metaclass=_OfThisDevice):
    """A mark in a stream. ``elapsed_time`` between two is modelled milliseconds, the same on every run.

    Makes a plain :class:`torch.Event` of this device, because ``torch.Event.elapsed_time`` takes no subclass.
    """

    def __new__(cls, device: Any = None, enable_timing: bool = False, **given: Any) -> Event:
        return torch.Event(torch.device(DEVICE_NAME, _index(device)), enable_timing=enable_timing, **given)  # type: ignore[return-value]


def _check_id(stream_id: int) -> None:
    if not 0 <= stream_id <= _LAST:
        raise RuntimeError(f"stream {stream_id} does not exist: a card has streams 0 to {_LAST}")


def _make(index: int, stream_id: int) -> Stream:
    return Stream(stream_id=stream_id, device_index=index, device_type=_DEVICE_TYPE)


def current_stream(device: Any = None) -> Stream:
    """This thread's current stream of a card."""
    found = torch.accelerator.current_stream(torch.device(DEVICE_NAME, _index(device)))
    return _make(found.device_index, found.stream_id)


def default_stream(device: Any = None) -> Stream:
    """Stream 0 of a card."""
    return _make(_index(device), 0)


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream the current one of its card, for this thread."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream | None) -> AbstractContextManager[Any]:
    """Context manager: the current stream inside."""
    return nullcontext() if stream is None else stream


def synchronize(device: Any = None) -> None:
    """Wait until all streams of a card are done; raises what went wrong on them."""
    torch.accelerator.synchronize(torch.device(DEVICE_NAME, _index(device)))


@atexit.register
def _finish() -> None:
    """Wait for queued work while the interpreter still runs: host callbacks need it, and errors are printed.

    A program that ends with Ctrl-C does not wait.
    """
    if not _C.runtime_started() or _C.in_bad_fork():
        return
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) and not hasattr(sys, "ps1"):
        _C.drop_work()
        return
    for index in range(_C.device_count()):
        try:
            synchronize(index)
        except Exception as error:
            print(f"work on {DEVICE_NAME}:{index} failed after the last wait for it: {error}", file=sys.stderr)
