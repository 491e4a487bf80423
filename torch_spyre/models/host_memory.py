"""The memory of this machine and this process, as Linux tells it in /proc: a container may be without, or hide it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

PROC = Path("/proc")


def available() -> int | None:
    """Bytes that this machine has free; None where it does not say."""
    return _kilobytes("meminfo", "MemAvailable:")


def mapped() -> int | None:
    """Bytes of addresses that this process has, the reserved ones of its cards included; None where it does not say."""
    statm = _text("self/statm")
    return int(statm.split()[0]) * os.sysconf("SC_PAGE_SIZE") if statm else None


def peak() -> int:
    """The most memory that this program had. Without /proc, that of whoever started it may be counted, too."""
    own = _kilobytes("self/status", "VmHWM:")
    return own if own is not None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _kilobytes(file: str, field: str) -> int | None:
    lines = _text(file).splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), None)


def _text(file: str) -> str:
    try:
        return (PROC / file).read_text()
    except OSError:
        return ""
