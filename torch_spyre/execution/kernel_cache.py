"""Compiled kernels on disk, found by content: a second process starts warm.

An entry is a SpyreCode directory under the hash of everything that it was made from, so nothing ever has to be
invalidated. Entries are written aside and moved into place in one step; one that does not read back as it was written
is built again. Processes share entries without locks: whoever loses a race has a cache miss, never half an entry. What
is being written is locked, so that others see whether a process still does or was killed over it.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import _C
from .._inductor import config, logging
from ..backend.tiling import resident_budget
from ..card import description as card_description
from ..ir import spyrecode
from .signature import Argument
from .version import compiler_version

log = logging.get_logger(__name__)

CHECKSUM = "manifest.sha256"  # of the file that has everybody else's

_counts: Counter[str] = Counter()
_lock = threading.Lock()
_bytes_used: dict[Path, int] = {}  # by cache directory: what this process believes lies there


def find_or_build(text: str, signature: Sequence[Argument], build: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The description of this kernel for this signature: from disk if it is there, else built and kept."""
    root = directory()
    if root is None or logging.artifacts_wanted():  # artifacts are written by compiling
        return build()
    key = key_of(text, signature)
    entry = root / key[:2] / key
    found = _read(root, entry)
    if found is not None:
        _count("hits")
        return found
    _count("misses")
    description = build()
    _write(root, entry, description)
    return description


def directory() -> Path | None:
    """Where compiled kernels are kept: ``SPYRE_KERNEL_CACHE``, or beside Inductor's own cache; None when turned off."""
    given = os.environ.get("SPYRE_KERNEL_CACHE", "")
    if given == "0":
        return None
    if given not in ("", "1"):
        return Path(given)
    # As in torch._inductor.runtime.cache_dir_utils, whose import takes a second that eager programs should not wait.
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return (Path(inductor) if inductor else Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")) / "spyre"


def stats() -> dict[str, int]:
    """How often an entry was found, missed, rebuilt because it was damaged, and evicted, in this process."""
    return {name: _counts[name] for name in ("hits", "misses", "rebuilt", "evicted")}


def key_of(text: str, signature: Sequence[Argument]) -> str:
    """Hash of all that a compiled kernel follows from."""
    parts = {
        "kernel": text,
        "signature": [[str(argument.layout), argument.offset, argument.storage] for argument in signature],
        "hardware": card_description.constants(),
        "cores": _C.card_cores(_C.current_device()),
        "lx": resident_budget(),
        "flex": _C.flex_device(),
        "config": config.save_config_portable(ignore_private_configs=False),
        "compiler": compiler_version(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _count(name: str) -> None:
    _counts[name] += 1
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters["spyre"][f"kernel_cache_{name}"] += 1


def _read(root: Path, entry: Path) -> dict[str, Any] | None:
    if not entry.exists():
        return None
    try:
        if (entry / CHECKSUM).read_bytes() != _manifest_checksum(entry):
            raise spyrecode.CorruptSpyreCode(f"{entry}: the manifest is not what was written")
        found = spyrecode.read(entry)
        os.utime(entry)  # evicted last
        return found
    except (spyrecode.CorruptSpyreCode, OSError) as error:
        log.warning("kernel cache: %s is damaged and will be built again: %s", entry, error)
        _count("rebuilt")
        _remove(root, entry)
        return None


def _write(root: Path, entry: Path, description: dict[str, Any]) -> None:
    """Keep a description. A cache that cannot be written costs time, nothing else."""
    try:
        with _aside(root) as aside:
            spyrecode.write(aside / entry.name, description)
            (aside / entry.name / CHECKSUM).write_bytes(_manifest_checksum(aside / entry.name))
            size = _size(aside / entry.name)
            entry.parent.mkdir(parents=True, exist_ok=True)
            if entry.exists():  # another process was faster
                return
            (aside / entry.name).rename(entry)
        with _lock:
            if root in _bytes_used:
                _bytes_used[root] += size
            else:
                _bytes_used[root] = sum(each[1] for each in _entries(root))
                _sweep(root)
            if _bytes_used[root] > config.kernel_cache_bytes:
                _bytes_used[root] = _evict(root, entry)
    except OSError as error:
        log.warning("kernel cache: could not write %s: %s", entry, error)


def _manifest_checksum(entry: Path) -> bytes:
    return hashlib.sha256((entry / spyrecode.MANIFEST).read_bytes()).digest()


@contextmanager
def _aside(root: Path) -> Iterator[Path]:
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
    """Take an entry away in one step; who is reading it meets the end of a file and builds it again."""
    with suppress(OSError), _aside(root) as aside:
        entry.rename(aside / entry.name)


def _entries(root: Path) -> list[tuple[float, int, Path]]:
    """Last use, bytes and path of every entry."""
    found = []
    for path in root.glob("??/*"):
        with suppress(OSError):
            found.append((path.stat().st_mtime, _size(path), path))
    return found


def _size(entry: Path) -> int:
    return sum(file.stat().st_size for file in entry.iterdir())


def _evict(root: Path, newest: Path) -> int:
    """Remove what was not used for longest until a tenth is free; gives the bytes that stay."""
    entries = sorted(_entries(root))
    used = sum(size for _, size, _ in entries)
    for _, size, path in entries:
        if used <= 0.9 * config.kernel_cache_bytes:
            break
        if path != newest:
            _remove(root, path)
            _count("evicted")
            used -= size
    return used
