"""A folder of what was expensive to make, found by key: shared by processes, bounded, and checked when it is read.

An entry is a directory whose manifest says what is in it, under the hash of everything that it was made from, so
nothing ever has to be invalidated. Entries are written aside and moved into place in one step; one that does not read
back as it was written is made again. Processes share entries without locks: whoever loses a race misses, and never sees
half an entry. What is being written is locked, so that others see whether a process still does or was killed over it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from .._inductor import logging
from ..ir.spyrecode import MANIFEST, CorruptSpyreCode

log = logging.get_logger(__name__)

CHECKSUM = "manifest.sha256"  # of the file that has everybody else's

T = TypeVar("T")


class Store(Generic[T]):
    """Entries of one kind. ``read`` and ``write`` take the directory of one; ``most_bytes``: of all of them."""

    def __init__(
        self, name: str, read: Callable[[Path], T], write: Callable[[Path, T], None], most_bytes: Callable[[], int]
    ) -> None:
        self.name = name
        self._read, self._write_entry, self._most_bytes = read, write, most_bytes
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.bytes_used: dict[Path, int] = {}  # by folder: what this process believes lies there

    def stats(self) -> dict[str, int]:
        """How often an entry was found, missed, made again because it was damaged, and evicted, in this process."""
        return {event: self.counts[event] for event in ("hits", "misses", "rebuilt", "evicted")}

    def find(self, root: Path, key: str) -> T | None:
        found = self._read_checked(root, _entry(root, key))
        self._count("misses" if found is None else "hits")
        return found

    def keep(self, root: Path, key: str, value: T) -> None:
        """A store that cannot be written costs time, nothing else."""
        entry = _entry(root, key)
        try:
            with aside(root) as beside:
                self._write_entry(beside / entry.name, value)
                (beside / entry.name / CHECKSUM).write_bytes(_manifest_checksum(beside / entry.name))
                size = _size(beside / entry.name)
                entry.parent.mkdir(parents=True, exist_ok=True)
                if entry.exists():  # another process was faster
                    return
                (beside / entry.name).rename(entry)
            with self._lock:
                if root in self.bytes_used:
                    self.bytes_used[root] += size
                else:
                    self.bytes_used[root] = sum(each[1] for each in _entries(root))
                    _sweep(root)
                if self.bytes_used[root] > self._most_bytes():
                    self.bytes_used[root] = self._evict(root, entry)
        except OSError as error:
            log.warning("%s: could not write %s: %s", self.name, entry, error)

    def _count(self, event: str) -> None:
        self.counts[event] += 1
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is not None:
            dynamo.counters["spyre"][f"{self.name.replace(' ', '_')}_{event}"] += 1

    def _read_checked(self, root: Path, entry: Path) -> T | None:
        if not entry.exists():
            return None
        try:
            if (entry / CHECKSUM).read_bytes() != _manifest_checksum(entry):
                raise CorruptSpyreCode(f"{entry}: the manifest is not what was written")
            found = self._read(entry)
            os.utime(entry)  # evicted last
            return found
        except (CorruptSpyreCode, ValueError, OSError) as error:
            log.warning("%s: %s is damaged and will be made again: %s", self.name, entry, error)
            self._count("rebuilt")
            _remove(root, entry)
            return None

    def _evict(self, root: Path, newest: Path) -> int:
        """Remove what was not used for longest until a tenth is free; gives the bytes that stay."""
        entries = sorted(_entries(root))
        used = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if used <= 0.9 * self._most_bytes():
                break
            if path != newest:
                _remove(root, path)
                self._count("evicted")
                used -= size
        return used


def _entry(root: Path, key: str) -> Path:
    return root / key[:2] / key


def _manifest_checksum(entry: Path) -> bytes:
    return hashlib.sha256((entry / MANIFEST).read_bytes()).digest()


@contextmanager
def aside(root: Path) -> Iterator[Path]:
    """A directory on the same file system where entries are written, and where they go to be removed."""
    (root / "aside").mkdir(parents=True, exist_ok=True)
    path, lock = _locked_directory(root / "aside")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _locked_directory(parent: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(dir=parent))
        with suppress(FileNotFoundError):
            lock = _lock_of(path, fcntl.LOCK_EX)
            if path.exists():  # else it was taken for a leftover before it was locked
                return path, lock
            os.close(lock)


def _lock_of(path: Path, operation: int) -> int:
    """Take the lock of a directory, which threads and processes see alike, and which ends with its holder."""
    opened = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(opened, operation)
    except OSError:
        os.close(opened)
        raise
    return opened


def _sweep(root: Path) -> None:
    """Remove what processes that were killed left aside: nobody holds its lock."""
    for path in (root / "aside").iterdir():
        with suppress(OSError):
            lock = _lock_of(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _remove(root: Path, entry: Path) -> None:
    """Take an entry away in one step; who is reading it meets the end of a file and makes it again."""
    with suppress(OSError), aside(root) as beside:
        entry.rename(beside / entry.name)


def _entries(root: Path) -> list[tuple[float, int, Path]]:
    """Last use, bytes and path of every entry."""
    found = []
    for path in root.glob("??/*"):
        with suppress(OSError):
            found.append((path.stat().st_mtime, _size(path), path))
    return found


def _size(entry: Path) -> int:
    return sum(file.stat().st_size for file in entry.iterdir())
