"""A folder of what was expensive to make, found by key: shared by processes, bounded, and checked when it is read.

An entry is a directory of files, among them a manifest that says what is in the others, under the hash of everything
that it was made from, so nothing ever has to be invalidated. Entries are written aside and moved into place in one
step; one that does not read back as it was written is made again. Processes share entries without locks: one that loses
a race misses, and never sees half an entry. An entry that is being written is locked, so that other processes see
whether its writer still runs or was killed.

Entries are trusted like code, so the folder and all in it are private to the caller (:mod:`torch_spyre.directories`).
Where they are not, or cannot be made or written, everything is made anew, and a warning says so once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Generic, TypeVar

from .. import directories, logging
from ..ir.spyrecode import MANIFEST, MOST_BYTES, CorruptSpyreCode, Reader

log = logging.get_logger(__name__)

CHECKSUM = "manifest.sha256"  # of the file that has everybody else's
ASIDE = "aside"
_WRITING = "entry-"
_OWN = re.compile(_WRITING + "[0-9a-f]{16}")  # what may be swept
_SHELF, _KEY = re.compile("[0-9a-f]{2}"), re.compile("[0-9a-f]{64}")

T = TypeVar("T")

_warned: set[Path] = set()  # folders of which it was said that they cannot be used


class Store(Generic[T]):
    """Entries of one kind, in a folder of the cache, or in the cache itself if that has no name.

    ``decode`` takes what reads a file, ``encode`` gives an entry's files; ``most_bytes``: of all entries.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        decode: Callable[[Reader], T],
        encode: Callable[[T], dict[str, bytes]],
        most_bytes: Callable[[], int],
    ) -> None:
        self.name, self.folder = name, folder
        self._decode, self._encode, self._most_bytes = decode, encode, most_bytes
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.bytes_used: dict[Path, int] = {}  # by cache: what this process believes lies there

    def stats(self) -> dict[str, int]:
        """How often an entry was found, missed, made again because it was damaged, and evicted, in this process."""
        return {event: self.counts[event] for event in ("hits", "misses", "rebuilt", "evicted")}

    def find(self, root: Path, key: str) -> T | None:
        found = None
        try:
            with self._opened(root) as folder, directories.inside(folder, key[:2]) as shelf:
                found = self._read_checked(folder, shelf, key)
        except FileNotFoundError:
            pass
        except OSError as error:
            warn_unused(root, error)
        self._count("misses" if found is None else "hits")
        return found

    def keep(self, root: Path, key: str, value: T) -> None:
        """A store that cannot be written costs time, nothing else."""
        files = self._encode(value)
        files[CHECKSUM] = hashlib.sha256(files[MANIFEST]).digest()
        try:
            with self._opened(root, create=True) as folder:
                if not _written(folder, key, files):
                    return  # another process was faster
                with self._lock:
                    if root in self.bytes_used:
                        self.bytes_used[root] += sum(map(len, files.values()))
                    else:
                        self.bytes_used[root] = sum(size for _, size, _ in _entries(folder))
                        _sweep(folder)
                    if self.bytes_used[root] > self._most_bytes():
                        self.bytes_used[root] = self._evict(folder, key)
        except OSError as error:
            warn_unused(root, error)

    def discard(self, root: Path, key: str, reason: object) -> None:
        """An entry that is of no use is made again."""
        log.warning("%s: %s is damaged and will be made again: %s", self.name, key, reason)
        self._count("rebuilt")
        with suppress(OSError), self._opened(root) as folder:
            _remove(folder, key)

    @contextmanager
    def _opened(self, root: Path, create: bool = False) -> Iterator[int]:
        with directories.private(root, create) as cache:
            inner = directories.inside(cache, self.folder, create) if self.folder else nullcontext(cache)
            with inner as folder:
                yield folder

    def _count(self, event: str) -> None:
        self.counts[event] += 1
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is not None:
            dynamo.counters["spyre"][f"{self.name.replace(' ', '_')}_{event}"] += 1

    def _read_checked(self, folder: int, shelf: int, key: str) -> T | None:
        try:
            os.stat(key, dir_fd=shelf, follow_symlinks=False)
        except FileNotFoundError:
            return None
        try:
            with directories.inside(shelf, key) as entry:
                found = self._decode(_checked_files(entry))
                with suppress(OSError):  # on a file system that cannot be written nothing is evicted either
                    os.utime(entry)  # evicted last
                return found
        except Exception as error:  # whatever damage does to what reads it
            log.warning("%s: %s is damaged and will be made again: %s", self.name, key, error)
            self._count("rebuilt")
            _remove(folder, key)
            return None

    def _evict(self, folder: int, newest: str) -> int:
        """Remove what was not used for longest until a tenth is free; gives the bytes that stay."""
        entries = sorted(_entries(folder))
        used = sum(size for _, size, _ in entries)
        for _, size, key in entries:
            if used <= 0.9 * self._most_bytes():
                break
            if key != newest:
                _remove(folder, key)
                self._count("evicted")
                used -= size
        return used


def warn_unused(root: Path, reason: object) -> None:
    """Say, once, that what is made here is not kept, or not found again."""
    if root not in _warned:
        _warned.add(root)
        warnings.warn(
            f"compiled kernels are not kept in {root}: {reason}. Programs run as ever and compile anew; "
            "SPYRE_KERNEL_CACHE names another directory, SPYRE_KERNEL_CACHE=0 none",
            RuntimeWarning,
            stacklevel=2,
        )


def _checked_files(entry: int) -> Reader:
    """Reads an entry whose manifest is what was written; that has the checksums of the rest."""

    manifest = directories.read_file(entry, MANIFEST, MOST_BYTES)
    if directories.read_file(entry, CHECKSUM, MOST_BYTES) != hashlib.sha256(manifest).digest():
        raise CorruptSpyreCode("the manifest is not what was written")
    return lambda name, most: manifest if name == MANIFEST else directories.read_file(entry, name, most)


def _written(folder: int, key: str, files: dict[str, bytes]) -> bool:
    """Put an entry into its place; False if there is one."""
    with aside(folder) as beside, directories.inside(folder, key[:2], create=True) as shelf:
        with directories.inside(beside, key, create=True) as entry:
            directories.write_files(entry, files)
        try:
            os.rename(key, key, src_dir_fd=beside, dst_dir_fd=shelf)
        except OSError:
            with suppress(FileNotFoundError):
                os.stat(key, dir_fd=shelf, follow_symlinks=False)
                return False
            raise
    return True


@contextmanager
def aside(folder: int) -> Iterator[int]:
    """A directory on the same file system where entries are written, and where they go to be removed."""
    with directories.inside(folder, ASIDE, create=True) as all_of_them:
        name, lock = _locked_directory(all_of_them)
        try:
            yield lock
        finally:
            directories.remove(all_of_them, name)
            os.close(lock)


def _locked_directory(parent: int) -> tuple[str, int]:
    while True:
        name = directories.new_name(_WRITING)
        os.mkdir(name, 0o700, dir_fd=parent)
        with suppress(FileNotFoundError):  # it was taken for a leftover before it was locked
            lock = _lock_of(parent, name, fcntl.LOCK_EX)
            try:
                os.stat(name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                os.close(lock)
                continue
            return name, lock


def _lock_of(parent: int, name: str, operation: int) -> int:
    """Take the lock of a directory, which threads and processes see alike, and which ends with its holder."""
    opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        fcntl.flock(opened, operation)
    except OSError:
        os.close(opened)
        raise
    return opened


def _sweep(folder: int) -> None:
    """Remove what killed processes left aside, whose locks are free. Files with other names are not ours."""
    with suppress(FileNotFoundError), directories.inside(folder, ASIDE) as all_of_them:
        for name in filter(_OWN.fullmatch, os.listdir(all_of_them)):
            with suppress(OSError):
                lock = _lock_of(all_of_them, name, fcntl.LOCK_EX | fcntl.LOCK_NB)
                directories.remove(all_of_them, name)
                os.close(lock)


def _remove(folder: int, key: str) -> None:
    """Remove an entry in one step. A process that is reading it meets the end of a file and makes it again."""
    with suppress(OSError), aside(folder) as beside, directories.inside(folder, key[:2]) as shelf:
        os.rename(key, key, src_dir_fd=shelf, dst_dir_fd=beside)


def _entries(folder: int) -> list[tuple[float, int, str]]:
    """Last use, bytes and key of every entry."""
    found = []
    for prefix in filter(_SHELF.fullmatch, os.listdir(folder)):
        with suppress(OSError), directories.inside(folder, prefix) as shelf:
            for key in filter(_KEY.fullmatch, os.listdir(shelf)):
                with suppress(OSError), directories.inside(shelf, key) as entry:
                    sizes = [os.stat(name, dir_fd=entry, follow_symlinks=False).st_size for name in os.listdir(entry)]
                    found.append((os.fstat(entry).st_mtime, sum(sizes), key))
    return found
