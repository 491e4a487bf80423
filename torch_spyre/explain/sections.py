"""What a report says, as sections: paragraphs and tables. Plain text, a terminal and a notebook each draw them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from .run_data import Finding, RunData

LineOf = Callable[[int], str]  # a position in texts as a short line of the program

HEADING = "worth looking at, the most first:"
NOTHING = "nothing stands out"
MOST_REASONS = 5  # why values are not in LX


@dataclass(frozen=True)
class Column:
    name: str
    is_number: bool = False
    width: int = 0  # of plain text


@dataclass(frozen=True)
class Table:
    columns: Sequence[Column]
    rows: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True)
class Sections:
    title: str
    head: list[str]
    failure: list[str]  # what stopped the run, and where
    tables: list[Table]
    findings: list[tuple[str, list[str]]]  # a sentence, and lines about it


def sections_of(data: RunData, top: int, line_of: LineOf) -> Sections:
    """``top``: rows of each table and findings."""
    failure = []
    if "failure" in data:
        failure.append(f"failed: {data['failure']}")
        if at := line_of(data.get("failure_source", 0)):
            failure.append(f"at {at}")
    tables = [_ops(data, top, line_of), _bounds(data), _outside_lx(data)]
    return Sections(
        data["title"],
        _head(data),
        failure,
        [table for table in tables if table.rows],
        [_finding(each, line_of) for each in data["findings"][:top]],
    )


def _head(data: RunData) -> list[str]:
    totals, found = data["totals"], data["findings"]
    fallbacks = sum(row["count"] for row in data["eager"] if row["fallback"])
    eager = sum(row["count"] for row in data["eager"]) - fallbacks
    breaks, recompiles = (sum(each["kind"] == kind for each in found) for kind in ("graph break", "recompile"))
    eager_us = sum(row["us"] for row in data["eager"])
    rest = max(totals["other_us"] - eager_us, 0.0)
    lines = [
        f"{totals['us']:,.1f} us modelled: {_several(len(data['launches']), 'launch', 'launches')} of "
        f"{_several(len(data['kernels']), 'compiled kernel')} {totals['launched_us']:,.1f} us; "
        f"{_several(eager + fallbacks, 'eager op')} {eager_us:,.1f} us; transfers and waits {rest:,.1f} us",
        f"{_several(fallbacks, 'fallback')}, {_several(breaks, 'graph break')}, {_several(recompiles, 'recompile')}",
    ]
    if totals["least_us"]:
        lines.append(
            f"at least {totals['least_us']:,.1f} us for these ops: the launches take "
            f"{totals['launched_us'] / totals['least_us']:.2f} times that"
        )
    moved, needed = totals["moved_bytes"], totals["compulsory_bytes"]
    if needed:
        lines.append(f"{moved / 1e6:,.1f} MB through device memory, {needed / 1e6:,.1f} MB of arguments and results")
    inside = [each for kernel in data["kernels"] for each in kernel["buffers"] if each["kind"] == "internal"]
    if inside:
        stay = sum(each["place"] == "lx" for each in inside)
        lines.append(
            f"{stay:,} of {_several(len(inside), 'value')} inside kernels {'stays' if stay == 1 else 'stay'} in LX"
        )
    if totals["launched_us"]:
        lines.append(_core_use(data))
    return lines


def _several(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _core_use(data: RunData) -> str:
    cores, times = data["card"]["cores"], Counter(launch["kernel"] for launch in data["launches"])
    used = 0.0
    for number, count in times.items():
        used += count * sum(step["us"] * prod(step["slices"]) for step in data["kernels"][number]["steps"])
    return f"on {used / data['totals']['launched_us']:.1f} of {cores} cores, on average"


def _ops(data: RunData, top: int, line_of: LineOf) -> Table:
    times = Counter(launch["kernel"] for launch in data["launches"])
    rows: dict[tuple[str, int, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for number, count in times.items():
        for step in data["kernels"][number]["steps"]:
            row = rows[step["op"], step["source"], step["bound_by"]]
            row[0] += count
            row[1] += step["us"] * count
            row[2] += step["least_us"] * count
    for each in data["eager"]:
        row = rows[each["aten"], each["source"], "the CPU" if each["fallback"] else "eager"]
        row[0] += each["count"]
        row[1] += each["us"]
    total = data["totals"]["us"] or 1.0
    table = Table(
        [
            Column("us", True, 12),
            Column("share", True, 7),
            Column("x", True, 5),
            Column("of bound", True, 9),
            Column("bound by", width=14),
            Column("op", width=20),
            Column("line"),
        ]
    )
    ordered = sorted(rows.items(), key=lambda item: -item[1][1])
    for (op, source, bound), (calls, us, least) in ordered[:top]:
        of = f"{us / least:.2f}" if least else "-"
        table.rows.append(
            [f"{us:.2f}", f"{us / total:.1%}", f"{calls:.0f}", of, bound, op, line_of(source)[:80]],
        )
    if rest := ordered[top:]:
        us = sum(row[1] for _, row in rest)
        table.rows.append([f"{us:.2f}", f"{us / total:.1%}", "", "", "", f"{len(rest)} more rows", ""])
    return table


def _bounds(data: RunData) -> Table:
    times = Counter(launch["kernel"] for launch in data["launches"])
    found: dict[str, float] = defaultdict(float)
    for number, count in times.items():
        for step in data["kernels"][number]["steps"]:
            found[step["bound_by"]] += step["us"] * count
    total = data["totals"]["us"] or 1.0
    table = Table([Column("us", True, 12), Column("share", True, 7), Column("bound by", width=14)])
    for name, us in sorted(found.items(), key=lambda item: -item[1]):
        table.rows.append([f"{us:.2f}", f"{us / total:.1%}", name])
    return table


def _outside_lx(data: RunData) -> Table:
    """Why values inside kernels go through device memory, the costliest reasons first."""
    times = Counter(launch["kernel"] for launch in data["launches"])
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for number, kernel in enumerate(data["kernels"]):
        for buffer in kernel["buffers"]:
            if buffer["place"] == "pool":
                row = found[buffer.get("why_not", "").split(" (")[0].split(": ")[0] or "no reason is known"]
                row[0] += 1
                row[1] += buffer.get("saving_us", 0.0) * times[number]
    table = Table([Column("us", True, 12), Column("values", True, 7), Column("not in LX")])
    for reason, (count, us) in sorted(found.items(), key=lambda item: -item[1][1])[:MOST_REASONS]:
        table.rows.append([f"{us:.2f}", f"{count:.0f}", reason])
    return table


def _finding(finding: Finding, line_of: LineOf) -> tuple[str, list[str]]:
    if "saving_us" in finding:
        worth = f", saves {finding['saving_us']:,.1f} us"
    elif "saving_compiles" in finding:
        worth = f", saves {_several(finding['saving_compiles'], 'compile')}"
    else:
        worth = f", costs {finding['us']:,.1f} us" if finding["us"] else ""
    lines = [f"at {line}"] if (line := line_of(finding["source"])) else []
    return f"{finding['kind']}{worth}: {finding['text']}", [
        *lines,
        *([finding["advice"]] if "advice" in finding else []),
    ]
