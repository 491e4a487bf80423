"""Directories that only the caller can have written, and files in them; all by descriptor.

A path is walked once, without following a link, and what was checked is what is then used: nobody can put something
else in its place in between. A directory that is *private* belongs to the caller and nobody else can open it. Those on
the way to it belong to the caller or to the system, and strangers cannot rename what is in them.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in the place of a file keeps nobody waiting
_EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class NotPrivate(PermissionError):
    """A directory that somebody else may have written, or that is none; the message names it."""


@contextmanager
def private(path: Path, create: bool = False) -> Iterator[int]:
    """The descriptor of a private directory. With ``create`` it is made, and so is what is missing on the way."""
    *way, last = path.parts[1:] or ("",)
    if not path.is_absolute() or not last:
        raise NotPrivate(f"{path} is not the absolute path of a directory of its own")
    here = os.open("/", _WAY)
    try:
        so_far = Path("/")
        for name in way:
            so_far /= name
            below = _opened(here, name, _WAY, create, so_far)
            os.close(here)
            here = below
            _check_on_the_way(os.fstat(here), so_far)
        with inside(here, last, create, path) as found:
            yield found
    finally:
        os.close(here)


@contextmanager
def inside(parent: int, name: str, create: bool = False, path: Path | None = None) -> Iterator[int]:
    """The descriptor of a private directory in another one; ``path`` is for messages."""
    shown = Path(name) if path is None else path
    found = _opened(parent, name, _OPEN, create, shown)
    try:
        _check_own(found, shown)
        yield found
    finally:
        os.close(found)


def _opened(parent: int, name: str, flags: int, create: bool, path: Path) -> int:
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
    try:
        return os.open(name, flags, dir_fd=parent)
    except NotADirectoryError:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a directory"
        raise NotPrivate(f"{path} is {what}") from None
    except OSError as error:
        error.filename = str(path)
        raise


def _check_on_the_way(found: os.stat_result, path: Path) -> None:
    if found.st_uid not in (os.geteuid(), 0, os.stat("/").st_uid):  # in some containers the system is not 0
        raise NotPrivate(f"{path} belongs to another user (uid {found.st_uid})")
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise NotPrivate(f"everybody can rename what is in {path} (mode {stat.S_IMODE(found.st_mode):o})")


def _check_own(directory: int, path: Path) -> None:
    """Others may have read one that was made by an older version: it is closed to them from now on."""
    found = os.fstat(directory)
    if found.st_uid != os.geteuid():
        raise NotPrivate(f"{path} belongs to another user (uid {found.st_uid})")
    if found.st_mode & 0o022:
        raise NotPrivate(f"others can write to {path} (mode {stat.S_IMODE(found.st_mode):o})")
    if found.st_mode & 0o077:
        os.fchmod(directory, 0o700)


def read_file(directory: int, name: str, most: int) -> bytes:
    """A regular file, in this very directory, of at most so many bytes."""
    if "/" in name:
        raise OSError(f"{name} is not a name in the directory")
    opened = os.open(name, _READ, dir_fd=directory)
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{name} is not a regular file")
        if found.st_size > most:
            raise OSError(f"{name} has {found.st_size} bytes, which is more than {most}")
        with os.fdopen(opened, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(opened)


def write_files(directory: int, files: Mapping[str, bytes], mode: int = 0o600) -> None:
    """New files: what is there already is never opened for writing."""
    for name, data in files.items():
        with os.fdopen(os.open(name, _WRITE, mode, dir_fd=directory), "wb") as file:
            file.write(data)


def new_name(prefix: str) -> str:
    """A name that nobody has."""
    return f"{prefix}{secrets.token_hex(8)}"


def remove(directory: int, name: str) -> None:
    """Take away a file, a link (not what it leads to) or a whole directory, as far as that is possible."""
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:  # unlink says EISDIR or EPERM of a directory
        shutil.rmtree(name, ignore_errors=True, dir_fd=directory)


def exchange(directory: int, one: str, other: str) -> None:
    """Let two names change places, in one step where the system can."""
    names = [os.fsencode(name) for name in (one, other)]
    libc = ctypes.CDLL(None)
    if hasattr(libc, "renameat2") and not libc.renameat2(directory, names[0], directory, names[1], _EXCHANGE):
        return
    between = new_name(".")
    for source, target in ((other, between), (one, other), (between, one)):
        os.rename(source, target, src_dir_fd=directory, dst_dir_fd=directory)
