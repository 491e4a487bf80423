"""Samples of all counters, and what a card did between two of them.

Two clocks are at work. ``busy`` is of this machine: the share of wall time in which the software card carried something
out. Everything else is of the card that is simulated: shares, GiB/s, watts and degrees hold while it works, by its
modelled time. Where several processes use a card, it is as if they took turns on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime

from . import power
from .layout import Card, Work
from .processes import Process, find


@dataclass(frozen=True)
class Sample:
    """All counters at one time."""

    date: datetime
    monotonic_ns: int
    cpu: tuple[int, int]  # of the machine: ticks at work, and all
    memory: float  # of the machine, the share in use
    processes: tuple[Process, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CardRates:
    """A card between two samples."""

    id: int
    busy: float
    work: Work
    watts: float
    celsius: float
    capacity: int
    allocated: int
    peak: int
    reserved: int
    streams: int
    queued: int
    seconds: float  # between the samples

    def share(self, picoseconds: int) -> float:
        """Of the time that the card was busy, on its clock."""
        return picoseconds / self.work.busy_ps if self.work.busy_ps else 0.0

    def gib_per_s(self, count: int) -> float:
        """So many bytes in the time that the card was busy, on its clock."""
        return count / 2**30 / (self.work.busy_ps * 1e-12) if self.work.busy_ps else 0.0


@dataclass(frozen=True)
class ProcessRates:
    """A process between two samples, on one card."""

    process: Process
    card: Card
    busy: float
    work: Work


@dataclass(frozen=True)
class Rates:
    """Everything between two samples."""

    date: datetime
    cpu: float
    memory: float
    cards: list[CardRates] = field(default_factory=list)
    processes: list[ProcessRates] = field(default_factory=list)
    notes: tuple[str, ...] = ()


def sample() -> Sample:
    """The counters now. Raises OSError where their directory is open to others."""
    found = find()
    return Sample(datetime.now(), time.monotonic_ns(), _cpu(), _memory(), tuple(found.processes), tuple(found.notes))


def rates(before: Sample, after: Sample, ids: Collection[int] = ()) -> Rates:
    """What happened between two samples: on these cards, or on all that a process has. Without any, on card 0."""
    seconds = max(after.monotonic_ns - before.monotonic_ns, 1) / 1e9
    known = {(p.pid, p.counters.started_ticks, i): card.work for p in before.processes for i, card in _cards(p)}
    processes = []
    for process in after.processes:
        for i, card in _cards(process):
            if ids and card.physical not in ids:
                continue
            work = card.work.since(known.get((process.pid, process.counters.started_ticks, i), Work()))
            processes.append(ProcessRates(process, card, min(1.0, work.working_ns / 1e9 / seconds), work))
    shown = sorted(set(ids) or {each.card.physical for each in processes} or {0})
    ticks = [late - early for early, late in zip(before.cpu, after.cpu, strict=True)]
    cards = [_together(id, seconds, [each for each in processes if each.card.physical == id]) for id in shown]
    return Rates(after.date, ticks[0] / ticks[1] if ticks[1] else 0.0, after.memory, cards, processes, after.notes)


def _cards(process: Process) -> enumerate[Card]:
    return enumerate(process.counters.cards)


def _together(id: int, seconds: float, users: list[ProcessRates]) -> CardRates:
    work = sum((each.work for each in users), Work())
    watts = power.watts(work)
    cards = [each.card for each in users]
    return CardRates(
        id=id,
        busy=min(1.0, sum(each.busy for each in users)),
        work=work,
        watts=watts,
        celsius=power.celsius(watts),
        capacity=max((card.capacity for card in cards), default=0),
        allocated=sum(card.allocated for card in cards),
        peak=sum(card.peak for card in cards),
        reserved=sum(card.reserved for card in cards),
        streams=sum(len(card.streams) for card in cards),
        queued=sum(stream.queued for card in cards for stream in card.streams),
        seconds=seconds,
    )


def _cpu() -> tuple[int, int]:
    try:
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)  # idle, and idle until the disk answers


def _memory() -> float:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo") as file:
            available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return 0.0
    return 1 - available / total
