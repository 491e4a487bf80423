"""Listeners to the launches of compiled code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .. import _C
from ..ir.signature import Argument
from ..kernel_types import CompiledDescription


@dataclass(frozen=True)
class Launch:
    """A job plan that is launched, and the description that it was prepared from."""

    plan: _C.JobPlan
    code: CompiledDescription
    text: str = ""  # of the kernel, in loop IR
    signature: tuple[Argument, ...] = ()  # layouts and offsets of its arguments
    # Of the kernel in its graph: the FX nodes of each op of the text.
    occurrences: list[list[tuple[str, ...]]] = field(default_factory=list)


Listener = Callable[[Launch], None]

listeners: list[Listener] = _C.launch_listeners


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside, ``listener`` hears of every launch of compiled code, of all threads."""
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)
