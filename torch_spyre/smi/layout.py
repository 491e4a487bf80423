"""The file of counters that a process with a card keeps: ``csrc/card/telemetry/counters.h`` has the same places.

All words have 64 bits, in the machine's order. What is read may be damaged, and is checked here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields

MAGIC = int.from_bytes(b"SPRE_SMI", "little")
VERSION = 1
MODES = ("run", "timing", "strict")
MOST_CARDS = 8
STREAMS = 65

_HEADER = struct.Struct("=8Q")
_WORK_AT, _STREAMS_AT = 128, 256
_IDENTITY = struct.Struct("=3Q40x3Q")  # of a card, and its memory
_WORK = struct.Struct("=q12Q")
_STREAM = struct.Struct("=4Q")
CARD_BYTES = 2368
FILE_BYTES = _HEADER.size + MOST_CARDS * CARD_BYTES
_MOST = 2**63  # no counter gets there: so many picoseconds are 106 days of the card


class Damaged(ValueError):
    """A file that no card of this version has written; the message says what is wrong."""


@dataclass(frozen=True)
class Work:
    """What a card has done since it started. Times ending in ``_ps`` are modelled."""

    working_ns: int = 0
    busy_ps: int = 0
    matrix_ps: int = 0
    vector_ps: int = 0
    memory_ps: int = 0
    ring_ps: int = 0
    host_ps: int = 0
    kernels: int = 0
    transfers: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_from_host: int = 0
    bytes_to_host: int = 0

    def since(self, before: Work) -> Work:
        """What came after ``before``. Counters only grow; of two cards of one process, one after the other, they begin
        again."""
        names = [field.name for field in fields(self)]
        return Work(**{name: max(0, getattr(self, name) - getattr(before, name)) for name in names})

    def __add__(self, other: Work) -> Work:
        return Work(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)})


@dataclass(frozen=True)
class Stream:
    """A stream that had work: how much waits in it, and its modelled clock."""

    id: int
    submitted: int
    queued: int
    time_ps: int


@dataclass(frozen=True)
class Card:
    """The counters of one card of one process; memory in bytes."""

    physical: int
    cores: int
    capacity: int
    allocated: int
    peak: int
    reserved: int
    work: Work
    streams: tuple[Stream, ...]


@dataclass(frozen=True)
class Counters:
    """The counters of one process."""

    pid: int
    started_ticks: int
    pid_namespace: int
    mode: str
    cards: tuple[Card, ...]


def parse(data: bytes, now_ns: int) -> Counters | None:
    """The counters in a file; None where its process has not filled it yet. ``now_ns`` is the monotonic time."""
    if len(data) != FILE_BYTES:
        raise Damaged(f"it has {len(data)} bytes instead of {FILE_BYTES}")
    magic, version, size, pid, ticks, namespace, mode, cards = _HEADER.unpack_from(data)
    if magic == 0:
        return None
    if magic != MAGIC:
        raise Damaged("it does not begin as one")
    if version != VERSION or size != FILE_BYTES:
        raise Damaged(f"it is of version {version}, and this is `spyre smi` of version {VERSION}")
    if mode >= len(MODES) or not 1 <= cards <= MOST_CARDS or pid >= 2**31:
        raise Damaged(f"mode {mode}, {cards} cards and process {pid} cannot be")
    found = tuple(
        parse_card(data[start : start + CARD_BYTES], now_ns)
        for start in range(_HEADER.size, _HEADER.size + cards * CARD_BYTES, CARD_BYTES)
    )
    return Counters(pid, ticks, namespace, MODES[mode], found)


def parse_card(data: bytes, now_ns: int) -> Card:
    """The counters of one card."""
    physical, cores, capacity, allocated, peak, reserved = _IDENTITY.unpack_from(data)
    working, *rest = _WORK.unpack_from(data, _WORK_AT)
    streams = []
    for number in range(STREAMS):
        submitted, completed, time, _ = _STREAM.unpack_from(data, _STREAMS_AT + number * _STREAM.size)
        rest.append(time)
        if submitted:
            streams.append(Stream(number, submitted, max(0, submitted - completed), time))
    if physical >= MOST_CARDS or cores > 2**10 or max(capacity, allocated, peak, reserved, *rest) >= _MOST:
        raise Damaged("its numbers are larger than any card's")
    if working < 0:  # a task is under way, and its begin is subtracted
        working += now_ns
    if not 0 <= working <= now_ns:
        raise Damaged("it has worked for longer than the machine")
    work = Work(working, *rest[: len(fields(Work)) - 1])
    return Card(physical, cores, capacity, allocated, peak, reserved, work, tuple(streams))
