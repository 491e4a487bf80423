"""What the backend did that the user did not write, with what it costs, and what to do about it."""

from __future__ import annotations

from collections import defaultdict
from math import prod

from . import advice, run_data
from .kernels import Texts
from .watch import Notices, Watched

MOST = 8  # findings of one kind, the costliest
WORTH_US = 0.5  # what costs less is not told
FEW_CORES = 0.5  # of the cores: steps that use less are told
SLOW = 0.05  # of a kernel's time: steps that take less are not asked about
MUCH_PADDING = 0.2  # of the bytes of a buffer


def findings(run: run_data.RunData, watched: Watched, notices: Notices, texts: Texts) -> list[run_data.Finding]:
    """The changes worth most first: by what they save, then by what they cost."""
    found = [
        *_graph_breaks(notices, texts),
        *_recompiles(notices, texts),
        *_eager(run),
        *_layouts(run, watched),
        *_not_in_lx(run, watched),
        *_padding(run),
        *_few_cores(run),
    ]
    return sorted(found, key=lambda each: (-each.get("saving_us", 0.0), -each["us"]))


def _graph_breaks(notices: Notices, texts: Texts) -> list[run_data.Finding]:
    return [
        {
            "kind": "graph break",
            "text": _reason(each.text),
            "source": texts.number(each.source),
            "us": 0.0,
            "advice": "Values on both sides of it go through device memory, and each side is planned for itself. "
            "torch.compile(fullgraph=True) makes it an error.",
        }
        for each in notices.graph_breaks
    ]


def _reason(text: str) -> str:
    """The part of Dynamo's message that says why, in a line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for mark in ("Explanation:", "Graph Break Reason:", "Reason:"):
        for line in lines:
            if mark in line:
                return line.split(mark, 1)[1].strip() or line
    return lines[0] if lines else "a graph break"


def _recompiles(notices: Notices, texts: Texts) -> list[run_data.Finding]:
    return [
        {
            "kind": "recompile",
            "text": " ".join(each.text.split())[:400],
            "source": texts.number(each.source),
            "us": 0.0,
            "advice": "Sizes that change can be marked with torch._dynamo.mark_dynamic; numbers can be tensors.",
        }
        for each in notices.recompiles
    ]


def _eager(run: run_data.RunData) -> list[run_data.Finding]:
    found: list[run_data.Finding] = []
    for row in run["eager"]:
        if row["fallback"]:
            found.append(
                {
                    "kind": "fallback",
                    "text": f"{row['aten']} ran on the CPU {row['count']} times: {row['fallback']}",
                    "source": row["source"],
                    "us": row["us"],
                    "advice": "Its tensors travel to the host and back; the time is that of the transfers alone. "
                    "docs/supported_operations.md lists what is native.",
                    "saving_us": row["us"],
                }
            )
    native = [row for row in run["eager"] if not row["fallback"]]
    if native and run["totals"]["us"] and (us := sum(row["us"] for row in native)) > WORTH_US:
        found.append(
            {
                "kind": "eager",
                "text": f"{sum(row['count'] for row in native)} ops run one by one, outside of compiled code",
                "source": native[0]["source"],
                "us": us,
                "advice": "torch.compile makes one program of them, whose values may stay in LX.",
            }
        )
    return found[:MOST]


def _layouts(run: run_data.RunData, watched: Watched) -> list[run_data.Finding]:
    """Values that are turned, and arguments that lie so that device memory reads them slowly."""
    found: list[run_data.Finding] = []
    for number, kernel in enumerate(run["kernels"]):
        count = sum(launch["kernel"] == number for launch in run["launches"])
        costs: dict[tuple[int, int, bool], float] = defaultdict(float)
        for step in kernel["steps"]:
            turned = step["op"] == "restickify"
            for read in step["reads"]:
                slow = step["bound_by"] == "memory pattern" and step["us"] > SLOW * kernel["us"]
                if turned or (slow and kernel["buffers"][read]["kind"] == "input"):
                    costs[step["source"], read, turned] += step["us"] * count
        for (source, read, turned), us in sorted(costs.items(), key=lambda item: -item[1])[:MOST]:
            buffer = kernel["buffers"][read]
            better = advice.other_layout(run, watched, number, buffer, count) if buffer["kind"] == "input" else {}
            if us < WORTH_US or not (turned or better):
                continue
            why = "is turned: its sticks run along another dimension than the op needs"
            finding: run_data.Finding = {
                "kind": "restickify" if turned else "layout",
                "text": f"{buffer['kind']} {buffer['name']} {buffer['dtype']}{buffer['size']} "
                + (why if turned else "is read in short runs, which device memory is slow at"),
                "source": source,
                "us": us,
            }
            if better:
                finding["advice"], finding["saving_us"] = better["advice"], better["saving_us"]
            found.append(finding)
    return found


def _not_in_lx(run: run_data.RunData, watched: Watched) -> list[run_data.Finding]:
    """Values that go through device memory, those of equal layers together."""
    rows: dict[tuple[str, int], list[float]] = defaultdict(list)
    for number, kernel in enumerate(run["kernels"]):
        count = sum(launch["kernel"] == number for launch in run["launches"])
        for position, saving in advice.savings_in_lx(watched, number).items():
            buffer = kernel["buffers"][position]
            buffer["saving_us"] = saving
            writer = next(step for step in kernel["steps"] if position in step["writes"])
            said = f"{buffer['dtype']}{buffer['size']} goes through device memory: {buffer.get('why_not', '')}"
            rows[said, writer["source"]].append(saving * count)
    found: list[run_data.Finding] = [
        {
            "kind": "not in LX",
            "text": f"{len(savings)} x {said}" if len(savings) > 1 else said,
            "source": source,
            "us": sum(savings),
            "advice": "In LX it would save this much, if there were room.",
        }
        for (said, source), savings in rows.items()
        if sum(savings) > WORTH_US
    ]
    return sorted(found, key=lambda each: -each["us"])[:MOST]


def _padding(run: run_data.RunData) -> list[run_data.Finding]:
    found: list[run_data.Finding] = []
    bandwidth = run["card"]["constants"]["dram_gb_per_s"] * 1000  # bytes per microsecond
    for number, kernel in enumerate(run["kernels"]):
        count = sum(launch["kernel"] == number for launch in run["launches"])
        for buffer in kernel["buffers"]:
            us = buffer["padding"] / bandwidth * count
            if buffer["place"] == "lx" or buffer["padding"] < MUCH_PADDING * buffer["bytes"] or us < WORTH_US:
                continue
            found.append(
                {
                    "kind": "padding",
                    "text": f"{buffer['padding']:,} of {buffer['bytes']:,} bytes of {buffer['kind']} {buffer['name']} "
                    f"{buffer['dtype']}{buffer['size']} are padding: sticks have "
                    f"{buffer['layout']['device_size'][-1]} elements",
                    "source": 0,
                    "us": us,
                    "advice": "A stick dimension that is a multiple of a stick has none; the time is that of the "
                    "padding crossing device memory once.",
                }
            )
    return sorted(found, key=lambda each: -each["us"])[:MOST]


def _few_cores(run: run_data.RunData) -> list[run_data.Finding]:
    cores = run["card"]["cores"]
    costs: dict[tuple[int, str, str], float] = defaultdict(float)
    for launch in run["launches"]:
        for step in run["kernels"][launch["kernel"]]["steps"]:
            used = prod(step["slices"])
            if used < FEW_CORES * cores:
                key = (step["source"], step["op"], f"{'x'.join(map(str, step['extents']))} on {used} of {cores} cores")
                costs[key] += step["us"]
    found: list[run_data.Finding] = [
        {
            "kind": "few cores",
            "text": f"{op} over {said}: nothing of it divides further in whole sticks, or it pays less than it costs",
            "source": source,
            "us": us,
        }
        for (source, op, said), us in costs.items()
        if us > WORTH_US
    ]
    return sorted(found, key=lambda each: -each["us"])[:MOST]
