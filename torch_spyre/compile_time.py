"""How long a program waited for the compiler, apart from how long it ran.

Kernels are made, or loaded, when something first needs them: in the middle of a program, and inside each other.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass
class Spent:
    """Seconds in the compiler."""

    seconds: float = 0.0


class _Thread(threading.local):
    """Whether a thread is in the compiler, since when, and the watchers that add up its time."""

    def __init__(self) -> None:
        self.depth, self.began = 0, 0.0
        self.watching: list[Spent] = []


_thread = _Thread()


@contextmanager
def compiling() -> Iterator[None]:
    """What runs inside is the compiler's time."""
    _begin()
    try:
        yield
    finally:
        _end()


def _begin(*_: object) -> None:
    if not _thread.depth:
        _thread.began = time.monotonic()
    _thread.depth += 1


def _end(*_: object) -> None:
    _thread.depth -= 1
    if not _thread.depth:
        for spent in _thread.watching:
            spent.seconds += time.monotonic() - _thread.began


@contextmanager
def watched() -> Iterator[Spent]:
    """Adds up what this thread spends in the compiler inside, Dynamo included."""
    spent = Spent()
    _thread.watching.append(spent)
    dynamo = sys.modules.get("torch._dynamo.callback")  # a program that compiles has imported it
    if dynamo is not None:
        dynamo.callback_handler.register_start_callback(_begin)
        dynamo.callback_handler.register_end_callback(_end)
    try:
        yield spent
    finally:
        _thread.watching = [each for each in _thread.watching if each is not spent]
        if dynamo is not None:
            with suppress(ValueError):  # a reset has forgotten them
                dynamo.callback_handler.remove_start_callback(_begin)
                dynamo.callback_handler.remove_end_callback(_end)
