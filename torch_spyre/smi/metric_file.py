"""Files that ``spyre smi -s csv -f FILE`` has written."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from datetime import datetime
from os import PathLike
from typing import Any

from .columns import COLUMNS, FIRST, NONE

_MOST_LINE = 2**16
_INTEGERS = ("streams", "queued")


class MetricFile:
    """The samples of a CSV file. A sample is a dictionary by the names of the columns: ``ID`` is an integer, ``Date``
    is date and time together, what the file has no value of is None, everything else is a number.

    >>> file = MetricFile("metrics.csv")
    >>> file.set_filters(ids=[0], columns=["pwr", "busy"])
    >>> for sample in file.read_metrics(): ...
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = path
        self.set_filters()

    def set_filters(
        self,
        ids: Collection[int] | None = None,
        columns: Collection[str] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> None:
        """Samples of these cards, these columns, and these times; of all where none are given."""
        known = {*FIRST, *(column.name for column in COLUMNS)}
        if unknown := sorted(set(columns or ()) - known):
            raise ValueError(f"there is no column {unknown[0]}; the columns are {', '.join(sorted(known))}")
        self._ids, self._columns, self._start, self._end = ids, columns, start, end

    def read_metrics(self) -> list[dict[str, Any]]:
        """The samples, in order. Raises ValueError that names the line where the file is none of these."""
        with open(self.path, encoding="utf-8", newline="") as file:
            lines = self._lines(file)
            names = next(lines, (0, []))[1]
            if tuple(names[: len(FIRST)]) != FIRST:
                raise ValueError(f"{self.path} does not begin with {','.join(FIRST)}: `spyre smi -s csv -f` writes it")
            if (missing := sorted(set(self._columns or ()) - set(names))) and missing != ["Time"]:
                raise ValueError(f"{self.path} has no column {missing[0]}")
            samples = (self._sample(number, names, cells) for number, cells in lines if cells != names)
            return [self._chosen(sample) for sample in samples if self._wanted(sample)]

    def _lines(self, file: Any) -> Iterator[tuple[int, list[str]]]:
        number = 0
        while line := file.readline(_MOST_LINE):
            number += 1
            if cells := next(csv.reader([line]), []):
                yield number, cells

    def _sample(self, number: int, names: list[str], cells: list[str]) -> dict[str, Any]:
        try:
            values = dict(zip(names, cells, strict=True))
            date = datetime.fromisoformat(f"{values.pop('Date')}T{values.pop('Time')}")
            sample: dict[str, Any] = {"ID": int(values.pop("ID")), "Date": date}
            for name, text in values.items():
                number_of = int if name in _INTEGERS else float
                sample[name] = None if text == NONE else number_of(text)
        except ValueError as error:
            raise ValueError(f"{self.path}, line {number}: {error}") from error
        return sample

    def _wanted(self, sample: dict[str, Any]) -> bool:
        in_time = (self._start or sample["Date"]) <= sample["Date"] <= (self._end or sample["Date"])
        return in_time and (self._ids is None or sample["ID"] in self._ids)

    def _chosen(self, sample: dict[str, Any]) -> dict[str, Any]:
        if self._columns is None:
            return sample
        return {name: value for name, value in sample.items() if name in ("ID", "Date", *self._columns)}
