"""Failures on their way to the user, told to whoever collects them.

The compiler and the runtime say what they are at (:func:`during`); the outermost of these tells the collectors. Without
a collector an error passes as if nothing were here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Failure:
    """``category``: compile_frontend, compile_backend, runtime_launch, unimplemented or unknown. ``facts`` are what is
    known of the kernel; a value that is a function is called by the collector that wants it."""

    category: str
    type: str
    message: str
    error: BaseException | None = None
    facts: dict[str, Any] = field(default_factory=dict)


collectors: list[Callable[[Failure], None]] = []


class _Thread(threading.local):
    def __init__(self) -> None:
        self.depth = 0
        self.where: list[tuple[BaseException, str]] = []  # the innermost place that an error passed
        self.facts: dict[str, Any] = {}


_thread = _Thread()


@contextmanager
def during(category: str, **facts: Any) -> Iterator[None]:
    """What is raised inside is of this category, unless something inside knew better."""
    if not collectors:
        yield
        return
    if not _thread.depth:
        _thread.where, _thread.facts = [], {}
    _thread.facts |= facts
    _thread.depth += 1
    try:
        yield
    except Exception as error:
        _note(error, category)
        if _thread.depth == 1:
            tell(Failure(_category(error), type(error).__name__, str(error), error, _thread.facts))
        raise
    finally:
        _thread.depth -= 1


def note(**facts: Any) -> None:
    """What is known of the kernel in work, for the case that it fails."""
    if collectors and _thread.depth:
        _thread.facts |= facts


def tell(failure: Failure) -> None:
    for collector in list(collectors):
        collector(failure)


def _note(error: BaseException, category: str) -> None:
    known = [each for each, _ in _thread.where]
    if not any(cause is each for cause in _causes(error) for each in known):
        _thread.where.append((error, category))


def _category(error: BaseException) -> str:
    """That of the innermost place which this error, or one of its causes, passed."""
    chain = _causes(error)
    if any(type(cause).__name__ == "Unsupported" for cause in chain):
        return "unimplemented"
    return next((category for each, category in _thread.where if any(each is cause for cause in chain)), "unknown")


def _causes(error: BaseException) -> list[BaseException]:
    found = [error]
    while (cause := found[-1].__cause__) is not None and len(found) < 20:
        found.append(cause)
    return found
