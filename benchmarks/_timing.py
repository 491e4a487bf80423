"""Best-of-many timing, with the sides interleaved so that both see the same machine; rows of a table."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Measured = TypeVar("Measured")

# Of a turn: its first calls pay for what the other side left in caches, and for its threads, which spin for
# milliseconds after they have worked.
BURST_CALLS, BURST_SECONDS = 3, 0.05


def seconds_of(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def best(call: Callable[[], object], repeats: int) -> float:
    """Best wall-clock seconds of one call."""
    return min(seconds_of(call) for _ in range(repeats))


def best_of_burst(call: Callable[[], object]) -> float:
    """Best wall-clock seconds of one call, of as many as a turn has."""
    end = time.perf_counter() + BURST_SECONDS
    fastest = best(call, BURST_CALLS)
    while time.perf_counter() < end:
        fastest = min(fastest, seconds_of(call))
    return fastest


def best_interleaved(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Each side measures itself once per round, in turn; the best of each side."""
    fastest = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for name, measure in sides.items():
            fastest[name] = min(fastest[name], measure())
    return fastest


def best_within(sides: dict[str, Callable[[], object]], seconds: float, rounds: int = 4) -> dict[str, float]:
    """Best seconds of one call of each side: a burst each in turn until the time is up, so many rounds at least."""
    for call in sides.values():
        call()
    end = time.perf_counter() + seconds
    bursts = {name: lambda call=call: best_of_burst(call) for name, call in sides.items()}
    fastest = best_interleaved(bursts, rounds)
    while time.perf_counter() < end:
        fastest = {name: min(fastest[name], one) for name, one in best_interleaved(bursts, 1).items()}
    return fastest


# Other processes may take so much of the machine while something is measured. With more, a comparison says little:
# threads that wait for each other by spinning, as OpenMP's do, lose several times over what is taken from them, and a
# pool that sleeps does not, so the best of many calls flatters one side.
QUIET = 0.05
ATTEMPTS, PATIENCE = 3, 30  # the seconds that an attempt waits for others to end


def _busy_seconds() -> tuple[float, float]:
    """Of all cores, and of this process and its children."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _, _, interrupts, soft, stolen = map(int, fields)
    ticks = user + nice + system + interrupts + soft + stolen
    own = os.times()
    return ticks / os.sysconf("SC_CLK_TCK"), own.user + own.system + own.children_user + own.children_system


def taken_by_others(measure: Callable[[], Measured]) -> tuple[float, Measured]:
    """The share of all cores that other processes had meanwhile, and what was measured."""
    start, (busy, own) = time.perf_counter(), _busy_seconds()
    found = measure()
    busy_after, own_after = _busy_seconds()
    others = (busy_after - busy) - (own_after - own)
    return max(0.0, others / ((time.perf_counter() - start) * (os.cpu_count() or 1))), found


def undisturbed(measure: Callable[[], Measured]) -> tuple[float, Measured]:
    """Measures again while others are busy; the quietest attempt as a whole, so that both sides are of the same one."""
    attempts: list[tuple[float, Measured]] = []
    while len(attempts) < ATTEMPTS and not any(share <= QUIET for share, _ in attempts):
        for _ in range(PATIENCE):
            if taken_by_others(lambda: time.sleep(1))[0] <= QUIET:
                break
        attempts.append(taken_by_others(measure))
    return min(attempts, key=lambda attempt: attempt[0])


@dataclass(frozen=True)
class Row:
    """A figure of the card, what it is held against, and how good it should be: both in seconds, or both in bytes.

    ``asked`` is the least ratio of theirs to ours: how many times as fast, or as small. ``limit`` is what this machine
    could do at best, where that is known. ``others`` is the share of the machine that other processes had meanwhile.
    """

    case: str
    ours: float
    against: str
    theirs: float
    asked: float
    limit: float | None = None
    unit: str = "s"
    others: float = 0.0
    commit: str = ""

    @property
    def ratio(self) -> float:
        return self.theirs / self.ours

    @property
    def valid(self) -> bool:
        return self.others <= QUIET

    @property
    def met(self) -> bool:
        return self.valid and self.ratio >= self.asked

    @property
    def of_limit(self) -> str:
        return "" if self.limit is None else f"{self.ours / self.limit:.2f} x"


def amount(value: float, unit: str) -> str:
    if unit == "B":
        return f"{value / 2**20:.0f} MiB"
    factor, name = next(pair for pair in ((1, "s"), (1e3, "ms"), (1e6, "us")) if value * pair[0] >= 1 or pair[0] == 1e6)
    return f"{value * factor:.3g} {name}" if value * factor < 1000 else f"{value * factor:.0f} {name}"


HEADINGS = ("case", "here", "against", "it takes", "ratio", "asked", "met", "limit", "time / limit", "others", "commit")


def cells(row: Row) -> tuple[str, ...]:
    limit = "" if row.limit is None else amount(row.limit, row.unit)
    return (
        row.case,
        amount(row.ours, row.unit),
        row.against,
        amount(row.theirs, row.unit),
        f"{row.ratio:.2f}",
        f">= {row.asked:g}",
        ("yes" if row.met else "no") if row.valid else "disturbed",
        limit,
        row.of_limit,
        f"{row.others:.0%}",
        row.commit,
    )


def line(row: Row) -> str:
    widths = (40, 9, 20, 9, 6, 7, 9, 9, 8, 4, 9)
    return " ".join(f"{cell:<{width}}" for cell, width in zip(cells(row), widths, strict=True)).rstrip()


def markdown(rows: Iterable[Row]) -> str:
    lines = [HEADINGS, ("---",) * len(HEADINGS), *map(cells, rows)]
    return "\n".join(f"| {' | '.join(one)} |" for one in lines)


def report(name: str, seconds: float, against: str, limit: float, ratio: float, bound: str) -> None:
    both = f"{seconds * 1e6:10.2f} us   {against} {limit * 1e6:10.2f} us"
    print(f"{name:<32} {both}   ratio {ratio:5.2f}   (asked: {bound})")
