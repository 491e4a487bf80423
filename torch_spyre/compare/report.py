"""What a comparison found, as text, JSON and HTML."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import Any

from .judge import Judgement
from .source import Line

_SHOWN = 30  # rows of the text; all are in .rows


@dataclass(frozen=True)
class Row:
    """One op that ran on the card."""

    line: Line
    op: str
    dtype: str
    shape: tuple[int, ...]
    where: str  # card, cpu (it fell back), or the name of the kernel that it is part of
    judgement: Judgement

    @property
    def verdict(self) -> str:
        return self.judgement.verdict

    @property
    def error(self) -> float:
        """The largest absolute error."""
        return self.judgement.error

    @property
    def units(self) -> float:
        """The same in what the op's roundings explain."""
        return self.judgement.units

    @property
    def note(self) -> str:
        return self.judgement.note

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.line.file,
            "line": self.line.number,
            "function": self.line.function,
            "backward": self.line.backward,
            "op": self.op,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "where": self.where,
            "max_abs_error": _number(self.error),
            "units": _number(self.units),
            "verdict": self.verdict,
            "note": self.note,
        }

    def __str__(self) -> str:
        text = f"{self.line}: {self.op} {self.dtype}{list(self.shape)}: {_MEANING[self.verdict]}"
        if math.isfinite(self.units) and self.verdict == "beyond":
            text += f", {self.units:.3g} times"
        text += f" ({self.where})" if self.where != "card" else ""
        text += f"\n    {self.line.text}" if self.line.text else ""
        return text + (f"\n    {self.note}" if self.note else "")


_MEANING = {
    "ok": "right",
    "beyond": "its error is beyond what its roundings explain",
    "range": "a number is beyond the range of its format",
    "unchecked": "not compared",
}


@dataclass(frozen=True)
class Output:
    """A tensor that the program returned, against the same program in float32 on the host."""

    dtype: str
    shape: tuple[int, ...]
    error: float  # the largest absolute one
    relative: float  # the norm of the error by the norm of the reference

    def to_json(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "max_abs_error": _number(self.error),
            "relative_error": _number(self.relative),
        }


@dataclass
class Report:
    """Every op in the order of execution (``rows``), what the program returned (``result``), and how far errors have
    added up in it (``outputs``)."""

    rows: list[Row] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    result: Any = None

    @property
    def findings(self) -> list[Row]:
        return [row for row in self.rows if row.judgement.is_finding]

    @property
    def first(self) -> Row | None:
        """The first op whose error its roundings do not explain."""
        return next(iter(self.findings), None)

    @property
    def ok(self) -> bool:
        return self.first is None

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries and lists; numbers that JSON does not have are text."""
        return {
            "ok": self.ok,
            "first": self.first.to_json() if self.first else None,
            "rows": [row.to_json() for row in self.rows],
            "outputs": [output.to_json() for output in self.outputs],
        }

    def summary(self) -> str:
        unchecked = sum(row.verdict == "unchecked" for row in self.rows)
        fell_back = sum(row.where == "cpu" for row in self.rows)
        text = f"{len(self.rows)} ops compared, {len(self.findings)} beyond what their roundings explain"
        text += f", {fell_back} ran on the CPU" if fell_back else ""
        return text + (f", {unchecked} not compared" if unchecked else "")

    def __str__(self) -> str:
        lines = [self.summary()]
        if self.first:
            lines += ["", f"First: {self.first}"]
        lines += ["", *_table([_HEAD, *map(_cells, self._shown())])]
        if len(self.rows) > _SHOWN:
            lines += [f"({len(self.rows) - _SHOWN} more in .rows; these have the largest errors)"]
        for i, output in enumerate(self.outputs):
            lines += [
                f"output {i}, {output.dtype}{list(output.shape)}, against float32 on the host: "
                f"largest error {output.error:.3g}, relative {output.relative:.3g}"
            ]
        return "\n".join(lines)

    __repr__ = __str__

    def _shown(self) -> list[Row]:
        """Findings and the largest errors, in the order of the program."""
        worst = sorted(
            range(len(self.rows)), key=lambda i: (not self.rows[i].judgement.is_finding, -self.rows[i].units)
        )
        return [self.rows[i] for i in sorted(worst[:_SHOWN])]

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in _HEAD)
        body = "".join(
            f"<tr{_COLOUR.get(row.verdict, '')}>"
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(row))
            + "</tr>"
            for row in self._shown()
        )
        first = f"<pre>{html.escape(str(self.first))}</pre>" if self.first else ""
        return f"<p>{html.escape(self.summary())}</p>{first}<table><tr>{head}</tr>{body}</table>"


_HEAD = ("line", "op", "dtype", "shape", "max error", "of bound", "verdict", "where")
_COLOUR = {"beyond": ' style="background:#fdd"', "range": ' style="background:#fed"'}


def _cells(row: Row) -> tuple[str, ...]:
    line = f"{row.line.file.rpartition('/')[2]}:{row.line.number}" if row.line.file else "?"
    return (
        line + (" (backward)" if row.line.backward else ""),
        row.op,
        row.dtype,
        str(list(row.shape)),
        f"{row.error:.3g}",
        f"{row.units:.2f}" if row.units < 1000 else f"{row.units:.3g}",
        row.verdict,
        row.where,
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
