"""Where compiling spends its time: ``TORCH_SPYRE_TIMING=1`` writes ``rec.<pid>.json`` when the process ends.

An entry is a ``pipeline:`` (a whole compile), a ``stage:`` of it or a ``pass:``. Its inclusive time has everything that
ran inside, its own time has not what other entries there account for. ``TORCH_SPYRE_TIMING_OUT`` names the directory.
Threads add up; a forked process has a file of its own, which begins empty.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import directories

VERSION = 1


@dataclass
class Entry:
    """Nanoseconds on the host's clock, and counters; ``calls`` is one of them."""

    inclusive_ns: int = 0
    self_ns: int = 0
    counters: Counter[str] = field(default_factory=Counter)


class Records:
    """The entries of one process."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._lock = threading.Lock()
        self._thread = _Thread()

    def add(self, scope: Scope, inclusive: int, own: int, is_outermost: bool) -> None:
        with self._lock:
            entry = self.entries.setdefault(scope.name, Entry())
            entry.inclusive_ns += inclusive if is_outermost else 0
            entry.self_ns += own
            entry.counters["calls"] += 1

    def count(self, name: str, **counters: int) -> None:
        with self._lock:
            self.entries.setdefault(name, Entry()).counters.update(counters)

    def to_json(self) -> dict[str, Any]:
        with self._lock:
            return {
                name: {"inclusive_ns": each.inclusive_ns, "self_ns": each.self_ns, "counters": dict(each.counters)}
                for name, each in sorted(self.entries.items())
            }

    @property
    def open_scopes(self) -> list[Scope]:
        """Of this thread, the innermost last."""
        return self._thread.scopes


class _Thread(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Scope] = []


class Scope:
    """A piece of work that is timed."""

    def __init__(self, name: str, records: Records) -> None:
        self.name, self.records = name, records
        self.began = self.inside = 0

    def __enter__(self) -> None:
        self.records.open_scopes.append(self)
        self.began = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        inclusive = time.perf_counter_ns() - self.began
        scopes = self.records.open_scopes
        scopes.pop()
        if scopes:
            scopes[-1].inside += inclusive
        self.records.add(self, inclusive, inclusive - self.inside, all(each.name != self.name for each in scopes))


_OFF: AbstractContextManager[None] = nullcontext()
_records: Records | None = None


def timed(name: str) -> AbstractContextManager[None]:
    """What runs inside belongs to the entry ``pipeline:…``, ``stage:…`` or ``pass:…``."""
    return _OFF if _records is None else Scope(name, _records)


def count(name: str, **counters: int) -> None:
    """Adds to the counters of an entry."""
    if _records is not None:
        _records.count(name, **counters)


def start() -> None:
    """Begins to record, from nothing."""
    global _records
    _records = Records()


def stop() -> None:
    """Ends recording, and forgets what was recorded."""
    global _records
    _records = None


def write(directory: str | Path | None = None) -> Path | None:
    """Writes what was recorded so far to ``rec.<pid>.json``; None where nothing is recorded.

    The directory is ``TORCH_SPYRE_TIMING_OUT``, or the current one, and is made if it is not there.
    """
    if _records is None:
        return None
    folder = Path(directory or os.environ.get("TORCH_SPYRE_TIMING_OUT") or ".")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"rec.{os.getpid()}.json"
    content = {"version": VERSION, "pid": os.getpid(), "command": sys.argv, "entries": _records.to_json()}
    beside = folder / directories.new_name(".rec.")
    try:
        beside.write_text(json.dumps(content, indent=1) + "\n")
        beside.replace(file)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
    return file


def _write_at_exit() -> None:
    try:
        write()
    except OSError as error:
        print(f"torch_spyre: the compile-time record was not written: {error}", file=sys.stderr)


def _in_child() -> None:
    if _records is not None:
        start()


def _in_worker(_: object) -> None:
    """Processes of multiprocessing end without atexit."""
    from multiprocessing import util

    util.Finalize(None, _write_at_exit, exitpriority=0)


def _set_up() -> None:
    given = os.environ.get("TORCH_SPYRE_TIMING", "")
    if given not in ("", "0", "1"):
        raise ValueError(f"TORCH_SPYRE_TIMING={given!r}: expected 0 or 1")
    if given == "1":
        from multiprocessing import util

        start()
        atexit.register(_write_at_exit)
        os.register_at_fork(after_in_child=_in_child)
        util.register_after_fork(_in_worker, _in_worker)


_set_up()
