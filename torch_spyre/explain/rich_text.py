"""A report in a terminal, through the library `rich`: ``pip install torch_spyre[rich]``."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .sections import HEADING, NOTHING, Sections


def show(said: Sections, console: Console | None = None) -> None:
    """Texts are shown as they are: source lines may look like markup."""
    console = console or Console(highlight=False)
    console.print(Text(said.title, "bold"))
    for line in said.head:
        console.print(Padding(Text(line), (0, 0, 0, 2)))
    for line in said.failure:
        console.print(Padding(Text(line, "red"), (0, 0, 0, 2)))
    for each in said.tables:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in each.columns:
            table.add_column(
                column.name,
                justify="right" if column.is_number else "left",
                no_wrap=column.is_number,
                style="cyan" if column.name == "us" else None,
                overflow="fold",
            )
        for row in each.rows:
            table.add_row(*map(Text, row))
        console.print(table)
    console.print(Text(HEADING if said.findings else NOTHING, "bold"))
    for sentence, more in said.findings:
        kind, found, text = sentence.partition(": ")
        console.print(Padding(Text.assemble((kind, "yellow"), found, text), (0, 0, 0, 2)))
        for line in more:
            console.print(Padding(Text(line, "dim" if line.startswith("at ") else ""), (0, 0, 0, 4)))
    console.print()
