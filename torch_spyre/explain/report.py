"""A report of a run, for people: text, HTML for notebooks, and JSON for other programs."""

from __future__ import annotations

import html
import importlib.util
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from . import explorer
from .run_data import RunData
from .sections import HEADING, NOTHING, Column, Table, sections_of

_SOURCE = re.compile(r'File "(.*)", line (\d+)')


@dataclass(frozen=True, repr=False)
class Report:
    """What the backend did with a program. ``data`` has all of it (:mod:`.run_data`)."""

    data: RunData

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<report of {self.data['title']}: {self.microseconds:.1f} us>"

    @property
    def microseconds(self) -> float:
        """By which the card's clock went on."""
        return self.data["totals"]["us"]

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end."""
        return "failure" not in self.data

    def text(self, top: int = 12) -> str:
        """Plain: totals, where the time goes, findings. ``top``: rows of each."""
        said = sections_of(self.data, top, self.line)
        lines = [said.title, *(f"  {line}" for line in (*said.head, *said.failure))]
        for table in said.tables:
            lines += ["", *_plain(table)]
        lines += ["", HEADING if said.findings else NOTHING]
        for sentence, more in said.findings:
            lines += [f"  {sentence}", *(f"    {line}" for line in more)]
        return "\n".join(lines)

    def show(self, top: int = 12) -> None:
        """Prints it: in colour and as wide as the terminal where `rich` is installed, and plain everywhere else."""
        if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
            from .rich_text import show

            show(sections_of(self.data, top, self.line))
        else:
            print(self.text(top) + "\n")

    def to_json(self) -> str:
        return json.dumps(self.data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As JSON."""
        Path(path).write_text(self.to_json())

    def explore(self, path: str | os.PathLike[str], other: Report | None = None) -> None:
        """Writes the explorer, an HTML file that needs nothing else; with ``other``, to compare with that run."""
        explorer.write(self.data, Path(path), other.data if other else None)

    def _repr_html_(self) -> str:
        said = sections_of(self.data, 12, self.line)
        tables = "".join(f"<p>{_html(table)}</p>" for table in said.tables)
        findings = "".join(
            f"<li>{html.escape(sentence)}{''.join(f'<br>{html.escape(line)}' for line in more)}</li>"
            for sentence, more in said.findings
        )
        return (
            f"<h4>{html.escape(said.title)}</h4><p>{'<br>'.join(map(html.escape, (*said.head, *said.failure)))}</p>"
            f"{tables}<p>{HEADING if findings else NOTHING}</p><ul>{findings}</ul>"
        )

    def line(self, source: int) -> str:
        """``model.py:12 self.norm(x)``; empty where the line is unknown."""
        text = self.data["texts"][source]
        at = _SOURCE.match(text)
        if at is None:
            return text
        said = self.data["files"].get(at[1], {}).get(at[2], "").strip()
        return f"{Path(at[1]).name}:{at[2]} {said}".rstrip()


def _plain(table: Table) -> list[str]:
    rows = [[column.name for column in table.columns], *table.rows]
    return ["  ".join(map(_cell, table.columns, row)).rstrip() for row in rows]


def _cell(column: Column, text: str) -> str:
    return text.rjust(column.width) if column.is_number else text.ljust(column.width)


def _html(table: Table) -> str:
    def row(tag: str, cells: list[str]) -> str:
        sides = ("right" if column.is_number else "left" for column in table.columns)
        return "".join(
            f'<{tag} style="text-align: {side}">{html.escape(cell)}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )

    head = row("th", [column.name for column in table.columns])
    body = "".join(f"<tr>{row('td', cells)}</tr>" for cells in table.rows)
    return f"<table><tr>{head}</tr>{body}</table>"
