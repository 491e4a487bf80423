"""Listeners to the launches of compiled code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _C
from ..ir.signature import Argument

if TYPE_CHECKING:
    from .kernel import SpyreKernel


@dataclass(frozen=True)
class Launch:
    """A job plan that is launched, and the description that it was prepared from."""

    plan: _C.JobPlan
    code: dict[str, Any]
    kernel: SpyreKernel | None = None  # which was called
    signature: tuple[Argument, ...] = ()  # how its arguments lay


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
