"""``spyre smi``: what the cards of this machine do."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TextIO

from . import columns, views
from .layout import MOST_CARDS
from .sampling import Rates, rates, sample

LEAST_INTERVAL = 0.01
_LOOK = 0.25  # seconds over which one look measures
_CLEAR = "\x1b[H\x1b[J"

Lines = Callable[[Rates], list[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options; those of ``AIUSMI_OPTS`` come before the ones of the command line."""
    parser.description = "Without options: one look at cards and processes. With them: a line per card and interval."
    parser.add_argument("-d", "--interval", type=_interval, help="seconds between samples; 1 where lines are written")
    parser.add_argument("-c", "--count", type=_positive, help="end after so many samples; else with Ctrl-C")
    parser.add_argument("-i", "--ids", type=_ids, default=[], help="only these cards, with commas between")
    parser.add_argument("-g", "--groups", help="columns, by the letters of their groups: " + ", ".join(columns.GROUPS))
    parser.add_argument("-s", "--style", choices=("table", "csv"), help="how the lines are written")
    parser.add_argument("-f", "--file", type=Path, help="write there, instead of to standard output")
    parser.add_argument(
        "-w", "--watch", action="store_true", help="draw the look at cards and processes again and again"
    )
    parser.add_argument("--json", action="store_true", help="one object per sample, a line each")
    parser.add_argument("--serve", metavar="[HOST:]PORT", help="answer Prometheus at http://HOST:PORT/metrics")
    parser.set_defaults(command=run, options_of=parser)


def run(arguments: argparse.Namespace) -> None:
    """Writes samples until there are enough, or serves them."""
    arguments = _with_environment(arguments)
    _check(arguments)
    if arguments.serve:
        from . import prometheus

        prometheus.serve(arguments.serve)
        return
    lines, repeats = _chosen(arguments)
    interval = arguments.interval or (1.0 if repeats else _LOOK)
    with _output(arguments.file) as output:
        said: set[str] = set()
        for each in _samples(interval, arguments.count if repeats else 1, arguments.ids):
            text = "\n".join(lines(each))
            if arguments.watch and output.isatty():
                text = _CLEAR + text
            print(text, file=output, flush=True)
            if not arguments.json and lines is not _look:
                for note in set(each.notes) - said:
                    print(f"spyre smi: {note}", file=sys.stderr)
            said.update(each.notes)


def _with_environment(arguments: argparse.Namespace) -> argparse.Namespace:
    """The options of ``AIUSMI_OPTS``, under those that were given."""
    text = os.environ.get("AIUSMI_OPTS", "")
    if not text:
        return arguments
    parser: argparse.ArgumentParser = arguments.options_of
    try:
        preset = parser.parse_args(shlex.split(text))
    except (SystemExit, ValueError) as error:  # argparse has said what
        raise ValueError(f"AIUSMI_OPTS={text} are no options of `spyre smi`") from error
    for name, value in vars(preset).items():
        if getattr(arguments, name, None) == parser.get_default(name):
            setattr(arguments, name, value)
    return arguments


def _check(arguments: argparse.Namespace) -> None:
    by_line = arguments.style or arguments.groups
    for option, clashes in (("--json", by_line or arguments.watch), ("--watch", by_line or arguments.file)):
        if getattr(arguments, option[2:]) and clashes:
            raise ValueError(f"{option} has a form of its own, which the other options cannot change")
    if arguments.serve and (by_line or arguments.file or arguments.json or arguments.watch or arguments.count):
        raise ValueError("--serve answers one kind of question, which the other options cannot change")


def _chosen(arguments: argparse.Namespace) -> tuple[Lines, bool]:
    """How a sample is written, and whether there are more than one."""
    several = arguments.interval is not None or arguments.count is not None
    if arguments.json:
        return (lambda rates: [views.to_json(rates)]), several
    if arguments.watch:
        return _look, True
    if several or arguments.style or arguments.groups or arguments.file:
        chosen = columns.of_groups(arguments.groups or columns.DEFAULT_GROUPS)
        writer = columns.Csv if arguments.style == "csv" else columns.Table
        return writer(chosen, fraction=(arguments.interval or 1.0) % 1 != 0).lines, True
    return _look, False


def _look(rates: Rates) -> list[str]:
    try:
        width = os.get_terminal_size().columns
    except OSError:
        width = 160
    return views.table(rates, max(width, 100))


def _samples(interval: float, most: int | None, ids: list[int]) -> Iterator[Rates]:
    """At the times that the interval says, however long it takes to look."""
    before, start = sample(), time.monotonic()
    for number in count(1) if most is None else range(1, most + 1):
        time.sleep(max(0.0, start + number * interval - time.monotonic()))
        after = sample()
        yield rates(before, after, ids)
        before = after


@contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    with path.open("w", encoding="utf-8") as file:
        yield file


def _interval(text: str) -> float:
    seconds = float(text)
    if not LEAST_INTERVAL <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not between {LEAST_INTERVAL} and 86400 seconds")
    return seconds


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _ids(text: str) -> list[int]:
    ids = [int(part) for part in text.split(",")]
    if not all(0 <= id < MOST_CARDS for id in ids):
        raise argparse.ArgumentTypeError(f"cards have the numbers 0 to {MOST_CARDS - 1}, not {text}")
    return ids
