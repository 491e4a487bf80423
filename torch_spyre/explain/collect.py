"""From what was watched to the data of a run."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Sequence

from .. import _C
from .._inductor import config
from ..card import description
from ..card.description import STICK_BYTES
from ..card.lx_budget import resident_budget
from . import findings, kernels, run_data
from .trials import Program
from .watch import EagerCall, Failure, Notices, Watched

SMALLEST = 1e-9  # of the time: what is left of it by rounding
MOST_CALLS = 50_000  # eager ops that are kept one by one
AROUND = 3  # lines of source text before and after one that occurs
_SOURCE = re.compile(r'File "(.*)", line (\d+)')


def collect(
    title: str,
    watched: Watched,
    notices: Notices,
    failure: Failure | None = None,
    with_superdsc: bool = False,
    program: Program | None = None,
) -> run_data.RunData:
    """All that is known of a run, and what changes would save; ``program`` can be called again."""
    texts = kernels.Texts()
    texts.number("")
    found = [kernels.describe(launch, texts, with_superdsc) for launch in watched.kernels]
    launches: list[run_data.Launch] = [
        {
            "kernel": watched.numbers[id(each.launch.plan)],
            "stream": each.stream,
            "start_us": each.start_us,
            "us": each.us,
        }
        for each in watched.launches
    ]
    eager, eager_calls = _eager(watched.eager, texts)
    run: run_data.RunData = {
        "format": run_data.FORMAT,
        "version": run_data.VERSION,
        "title": title,
        "card": _card(),
        "totals": _totals(watched, found, launches),
        "texts": texts.all,
        "files": {},
        "kernels": found,
        "launches": launches,
        "eager": eager,
        "eager_calls": eager_calls,
        "findings": [],
    }
    run["findings"] = findings.findings(run, watched, notices, texts, program)
    if failure is not None:
        run["failure"], run["failure_source"] = failure.text, texts.number(failure.source)
    run["files"] = _files(texts.all)
    return run


def _card() -> run_data.Card:
    constants = {key: value for key, value in description.constants().items() if isinstance(value, int | float)}
    return {
        "cores": min(config.sencores, _C.card_cores(-1)),
        "stick_bytes": STICK_BYTES,
        "lx_bytes": int(constants["lx_bytes"]),
        "lx_budget": resident_budget(),
        "constants": constants,
    }


def _totals(watched: Watched, found: list[run_data.Kernel], launches: Iterable[run_data.Launch]) -> run_data.Totals:
    launched = least = 0.0
    compulsory = moved = 0
    for each in launches:
        kernel = found[each["kernel"]]
        launched += kernel["us"]
        least += sum(step["least_us"] for step in kernel["steps"])
        compulsory += sum(buffer["bytes"] for buffer in kernel["buffers"] if buffer["place"] == "argument")
        moved += sum(step["bytes_read"] + step["bytes_written"] for step in kernel["steps"])
    other = watched.us - launched
    return {
        "us": watched.us,
        "launched_us": launched,
        "other_us": other if other > SMALLEST * watched.us else 0.0,
        "least_us": least,
        "compulsory_bytes": compulsory,
        "moved_bytes": moved,
    }


def _eager(calls: Sequence[EagerCall], texts: kernels.Texts) -> tuple[list[run_data.EagerOp], list[run_data.EagerCall]]:
    """Calls of one op from one line together, the costliest first; and the first calls one by one."""
    found: dict[tuple[str, str], run_data.EagerOp] = {}
    for call in calls:
        row = found.setdefault(
            (call.aten, call.source),
            {"aten": call.aten, "source": texts.number(call.source), "count": 0, "us": 0.0, "fallback": ""},
        )
        row["count"] += 1
        row["us"] += call.us
        if call.reason is not None:
            row["fallback"] = call.reason or "the card has no kernel for it"
    ordered = sorted(found.items(), key=lambda item: -item[1]["us"])
    numbers = {key: number for number, (key, _) in enumerate(ordered)}
    one_by_one: list[run_data.EagerCall] = [
        {"op": numbers[call.aten, call.source], "stream": call.stream, "start_us": call.start_us, "us": call.us}
        for call in calls[:MOST_CALLS]
    ]
    return [row for _, row in ordered], one_by_one


def _files(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """The source text around every line that occurs."""
    found: dict[str, dict[int, str]] = {}
    for text in texts:
        at = _SOURCE.match(text)
        if at is None:
            continue
        lines = found.setdefault(at[1], {})
        for number in range(max(int(at[2]) - AROUND, 1), int(at[2]) + AROUND + 1):
            if number not in lines and (line := linecache.getline(at[1], number)):
                lines[number] = line.rstrip("\n")
    return {path: {str(number): lines[number] for number in sorted(lines)} for path, lines in found.items() if lines}
