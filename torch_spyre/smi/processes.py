"""The processes of this user that have a card, by the files they keep."""

from __future__ import annotations

import os
import pwd
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from .. import directories
from .layout import FILE_BYTES, Counters, Damaged, parse

_NAME = re.compile(r"([1-9][0-9]{0,9})-([0-9]{1,20})-([0-9]{1,20})")  # process, its start, its namespace
MOST_FILES = 1024
_MOST_COMMAND = 4096


@dataclass(frozen=True)
class Process:
    """A live process that has a card."""

    pid: int
    user: str
    command: str
    counters: Counters


@dataclass
class Found:
    """Live processes, and sentences about files that are none of theirs."""

    processes: list[Process] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def directory() -> Path:
    """Where processes of this user keep their counters. The same for all of them, whatever their environment, unless
    ``SPYRE_SMI`` names another."""
    given = os.environ.get("SPYRE_SMI", "")
    if given in ("", "0", "1"):
        return Path("/dev/shm" if os.path.isdir("/dev/shm") else "/tmp", f"torch_spyre_{os.geteuid()}")
    if not given.startswith("/"):
        raise ValueError(f"SPYRE_SMI={given}: expected 0, 1 or the absolute path of a directory")
    return Path(given)


def find() -> Found:
    """The live processes. Removes files that killed ones have left. Raises OSError for a directory that others can
    write to."""
    found, path = Found(), directory()
    try:
        with directories.private(path) as opened:
            names = sorted(os.listdir(opened))
            if len(names) > MOST_FILES:
                found.notes.append(f"{path} has {len(names)} files, of which {MOST_FILES} were looked at")
            for name in names[:MOST_FILES]:
                _look_at(opened, name, path, found)
    except FileNotFoundError:  # nobody has used a card yet
        pass
    return found


def _look_at(opened: int, name: str, path: Path, found: Found) -> None:
    matched = _NAME.fullmatch(name)
    if matched is None:
        found.notes.append(f"{path / _printable(name)} is no file of counters")
        return
    pid, ticks, namespace = (int(part) for part in matched.groups())
    if namespace != _own_namespace():
        return  # of another container, which looks after its own
    if _started_ticks(pid) != ticks:
        directories.remove(opened, name)
        return
    try:
        counters = parse(directories.read_file(opened, name, FILE_BYTES), time.monotonic_ns())
        if counters and (counters.pid, counters.started_ticks) != (pid, ticks):
            raise Damaged("it is of another process than its name says")
    except FileNotFoundError:  # the process has just ended
        return
    except (OSError, Damaged) as error:
        found.notes.append(f"{path / name} is damaged: {error}")
        return
    if counters:
        found.processes.append(Process(pid, _user(pid), _command(pid), counters))


def _own_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _started_ticks(pid: int) -> int | None:
    """When a process started; None where there is none. It tells one from the next that has its number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _user(pid: int) -> str:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        return pwd.getpwuid(uid).pw_name
    except OSError:
        return "?"
    except KeyError:
        return str(uid)


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_MOST_COMMAND).split(b"\0")
    except OSError:
        return "?"
    return _printable(" ".join(word.decode(errors="replace") for word in words).strip()) or "?"


def _printable(text: str) -> str:
    """A command line may have line breaks, and what terminals take for commands."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
