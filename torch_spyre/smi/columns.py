"""The columns of samples, one line for each card: names, groups and CSV as the public tool has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .sampling import CardRates, Rates

NONE = "-"  # what there is nothing to say of


@dataclass(frozen=True)
class Column:
    name: str
    group: str
    unit: str
    value: Callable[[CardRates, Rates], str]
    width: int = 7


def _per_cent(share: float) -> str:
    return f"{100 * share:.1f}"


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f}"


def _rate(gib_per_s: float) -> str:
    return f"{gib_per_s:.2f}"


# Always there, in front.
FIRST = ("ID", "Date", "Time")

GROUPS = {
    "D": "the host, power, temperature, busy, traffic",
    "R": "traffic of remote direct memory access, which software cards have none of",
    "M": "reserved memory",
    "U": "memory in use",
    "P": "the matrix units",
    "S": "streams",
    "X": "the other units, kernels, and how fast modelled time goes by",
}
DEFAULT_GROUPS = "DR"
ALL = "A"

COLUMNS = (
    Column("hostcpu", "D", "%", lambda card, all: _per_cent(all.cpu)),
    Column("hostmem", "D", "%", lambda card, all: _per_cent(all.memory)),
    Column("pwr", "D", "W", lambda card, all: f"{card.watts:.1f}"),
    Column("gtemp", "D", "C", lambda card, all: f"{card.celsius:.1f}"),
    Column("busy", "D", "%", lambda card, all: _per_cent(card.busy)),
    Column("rdmem", "D", "GiB/s", lambda card, all: _rate(card.gib_per_s(card.work.bytes_read))),
    Column("wrmem", "D", "GiB/s", lambda card, all: _rate(card.gib_per_s(card.work.bytes_written))),
    Column("rxpci", "D", "GiB/s", lambda card, all: _rate(card.gib_per_s(card.work.bytes_from_host))),
    Column("txpci", "D", "GiB/s", lambda card, all: _rate(card.gib_per_s(card.work.bytes_to_host))),
    Column("rdrdma", "R", "GiB/s", lambda card, all: NONE),
    Column("wrrdma", "R", "GiB/s", lambda card, all: NONE),
    Column("rsvmem", "M", "MiB", lambda card, all: _mebibytes(card.reserved), 9),
    Column("actmem", "U", "MiB", lambda card, all: _mebibytes(card.allocated), 9),
    Column("peakmem", "U", "MiB", lambda card, all: _mebibytes(card.peak), 9),
    Column("pt_active", "P", "%", lambda card, all: _per_cent(card.share(card.work.matrix_ps)), 9),
    Column("streams", "S", "", lambda card, all: str(card.streams)),
    Column("queued", "S", "", lambda card, all: str(card.queued)),
    Column("sfp_active", "X", "%", lambda card, all: _per_cent(card.share(card.work.vector_ps)), 10),
    Column("dram_active", "X", "%", lambda card, all: _per_cent(card.share(card.work.memory_ps)), 11),
    Column("ring_active", "X", "%", lambda card, all: _per_cent(card.share(card.work.ring_ps)), 11),
    Column("pci_active", "X", "%", lambda card, all: _per_cent(card.share(card.work.host_ps)), 10),
    Column("kernels", "X", "1/s", lambda card, all: f"{card.work.kernels / card.seconds:.0f}", 9),
    Column("modelled", "X", "ms/s", lambda card, all: f"{card.work.busy_ps * 1e-9 / card.seconds:.2f}", 9),
)


def of_groups(text: str) -> list[Column]:
    """The columns of groups that are given by their letters, with or without commas."""
    letters = text.replace(",", "").replace(" ", "").upper()
    unknown = sorted(set(letters) - set(GROUPS) - {ALL})
    if unknown or not letters:
        known = "; ".join(f"{letter}: {what}" for letter, what in GROUPS.items())
        raise ValueError(f"there is no group of columns {', '.join(unknown) or repr(text)}. {known}; {ALL}: all")
    return [column for column in COLUMNS if ALL in letters or column.group in letters]


class Table:
    """Lines of text under a head that comes again with each screenful."""

    lines_between_heads = 40

    def __init__(self, columns: list[Column], fraction: bool) -> None:
        self._columns, self._fraction, self._since_head = columns, fraction, 0
        self._widths = [4, 10, 12 if fraction else 8, *(column.width for column in columns)]

    def lines(self, rates: Rates) -> list[str]:
        head = [] if self._since_head % self.lines_between_heads else self._head()
        self._since_head += 1
        return head + [self._line(row) for row in rows(rates, self._columns, self._fraction)]

    def _head(self) -> list[str]:
        names = [*FIRST, *(column.name for column in self._columns)]
        units = ["", "", "", *(column.unit for column in self._columns)]
        return ["#" + self._line(names)[1:], "#" + self._line(units)[1:]]

    def _line(self, cells: Iterable[str]) -> str:
        return " ".join(cell.rjust(width) for cell, width in zip(cells, self._widths, strict=True))


class Csv:
    """Lines of CSV, which :class:`~torch_spyre.smi.MetricFile` reads."""

    def __init__(self, columns: list[Column], fraction: bool) -> None:
        self._columns, self._fraction, self._begun = columns, fraction, False

    def lines(self, rates: Rates) -> list[str]:
        head = [] if self._begun else [",".join([*FIRST, *(column.name for column in self._columns)])]
        self._begun = True
        return head + [",".join(row) for row in rows(rates, self._columns, self._fraction)]


def rows(rates: Rates, columns: list[Column], fraction: bool) -> list[list[str]]:
    """The cells of each card. ``fraction``: times have milliseconds."""
    time = rates.date.strftime("%H:%M:%S") + (f".{rates.date.microsecond // 1000:03}" if fraction else "")
    first = [rates.date.strftime("%Y-%m-%d"), time]
    return [[str(card.id), *first, *(column.value(card, rates) for column in columns)] for card in rates.cards]
