"""Listeners to the launches of compiled code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .. import _C
from ..kernel_types import CompiledDescription


@dataclass(frozen=True)
class Launch:
    """A job plan that is launched, and the description that it was prepared from."""

    plan: _C.JobPlan
    code: CompiledDescription


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
