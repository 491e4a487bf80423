"""What the backend did that the user did not write, with what it costs, and what to do about it."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import prod

from .. import _C
from . import advice, run_data, trials
from .kernels import Texts
from .trials import Program
from .watch import Notices, Watched

MOST = 8  # findings of one kind, the costliest
WORTH_US = 0.5  # what costs less is not told
FEW_CORES = 0.5  # of the cores: steps that use less are told
SLOW = 0.05  # of a kernel's time: steps that take less are not asked about
MUCH_PADDING = 0.2  # of the bytes of a buffer


def findings(
    run: run_data.RunData, watched: Watched, notices: Notices, texts: Texts, program: Program | None = None
) -> list[run_data.Finding]:
    """The changes worth most first: by what they save, then by what they cost. ``program`` can be called again."""
    found = [
        *_graph_breaks(run, notices, texts, program),
        *_recompiles(run, notices, texts, program),
        *_fallbacks(run),
        *_eager(run, notices, program),
        *_layouts(run, watched, notices),
        *_not_in_lx(run, watched),
        *_padding(run, watched, notices, program),
        *_hints(run, watched),
        *_few_cores(run, watched),
    ]
    return sorted(found, key=lambda each: (-each.get("saving_us", 0.0), -each["us"]))


def _launches(run: run_data.RunData) -> Counter[int]:
    """Of each kernel."""
    return Counter(launch["kernel"] for launch in run["launches"])


def _saving(run: run_data.RunData, us: float | None) -> float:
    """What the program saves that takes so long with a cause removed; 0 if that is no advice."""
    saved = run["totals"]["us"] - (run["totals"]["us"] if us is None else us)
    return saved if saved >= advice.LEAST_SHARE * run["totals"]["us"] else 0.0


def _graph_breaks(
    run: run_data.RunData, notices: Notices, texts: Texts, program: Program | None
) -> list[run_data.Finding]:
    found: list[run_data.Finding] = [
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
    if found and program is not None and (us := trials.as_one_graph(program)) is not None:
        together = f"As one graph, without its {len(found)} graph breaks," if len(found) > 1 else "As one graph"
        found[0]["advice"] = f"{together} the program takes {us:,.1f} us. {found[0]['advice']}"
        if saving := _saving(run, us):
            found[0]["saving_us"] = saving
    return found


def _reason(text: str) -> str:
    """The part of Dynamo's message that says why, in a line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for mark in ("Explanation:", "Graph Break Reason:", "Reason:"):
        for line in lines:
            if mark in line:
                return line.split(mark, 1)[1].strip() or line
    return lines[0] if lines else "a graph break"


def _recompiles(
    run: run_data.RunData, notices: Notices, texts: Texts, program: Program | None
) -> list[run_data.Finding]:
    found: list[run_data.Finding] = [
        {
            "kind": "recompile",
            "text": " ".join(each.text.split())[:400],
            "source": texts.number(each.source),
            "us": 0.0,
            "advice": "Sizes that change can be marked with torch._dynamo.mark_dynamic; numbers can be tensors.",
        }
        for each in notices.recompiles
    ]
    if not found:
        return found
    found[0]["text"] += f" ({notices.compiles} compiles, {notices.host_s:.1f} s of the host)"
    dynamic = trials.with_dynamic_shapes(program) if program is not None else None
    if dynamic is not None and dynamic.compiles < notices.compiles:
        found[0]["advice"] += (
            f" With torch.compile(dynamic=True) the same calls take {dynamic.compiles} compiles, "
            f"{dynamic.host_s:.1f} s of the host, and the last of them {dynamic.us:,.1f} us of the card, where it was "
            f"{run['totals']['us']:,.1f}."
        )
        found[0]["saving_compiles"] = notices.compiles - dynamic.compiles
        if saving := _saving(run, dynamic.us):
            found[0]["saving_us"] = saving
    return found


def _fallbacks(run: run_data.RunData) -> list[run_data.Finding]:
    found: list[run_data.Finding] = [
        {
            "kind": "fallback",
            "text": f"{row['aten']} ran on the CPU, {_times(row['count'])}: {row['fallback']}",
            "source": row["source"],
            "us": row["us"],
            "advice": "Its tensors travel to the host and back; the time is that of the transfers alone. "
            "docs/supported_operations.md lists what is native.",
            "saving_us": row["us"],
        }
        for row in run["eager"]
        if row["fallback"]
    ]
    return found[:MOST]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _eager(run: run_data.RunData, notices: Notices, program: Program | None) -> list[run_data.Finding]:
    native = [row for row in run["eager"] if not row["fallback"]]
    us = sum(row["us"] for row in native)
    if us <= WORTH_US:
        return []
    count = sum(row["count"] for row in native)
    finding: run_data.Finding = {
        "kind": "eager",
        "text": f"{count:,} ops run one by one, outside of compiled code"
        if count > 1
        else f"{native[0]['aten']} runs outside of compiled code",
        "source": native[0]["source"],
        "us": us,
        "advice": "torch.compile makes one program of them, whose values may stay in LX.",
    }
    if program is not None and not program.is_compiled and (together := trials.compiled(program)) is not None:
        finding["advice"] = f"Through torch.compile the program takes {together:,.1f} us: its values may stay in LX."
        if saving := _saving(run, together):
            finding["saving_us"] = saving
    elif notices.graph_breaks:
        finding["advice"] = "They are between graph breaks."
    return [finding]


def _layouts(run: run_data.RunData, watched: Watched, notices: Notices) -> list[run_data.Finding]:
    """Values that are turned, and arguments that lie so that device memory reads them slowly."""
    found: list[run_data.Finding] = []
    launches = _launches(run)
    for number, kernel in enumerate(run["kernels"]):
        count = launches[number]
        costs: dict[tuple[int, int, bool], float] = defaultdict(float)
        for step in kernel["steps"]:
            turned = step["op"] == "restickify"
            for read in step["reads"]:
                slow = step["bound_by"] == "memory pattern" and step["us"] > SLOW * kernel["us"]
                if turned or (slow and kernel["buffers"][read]["kind"] == "input"):
                    costs[step["source"], read, turned] += step["us"] * count
        for (source, read, turned), us in sorted(costs.items(), key=lambda item: -item[1])[:MOST]:
            buffer = kernel["buffers"][read]
            better = _other_layout(run, watched, notices, number, buffer)
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


def _other_layout(
    run: run_data.RunData, watched: Watched, notices: Notices, number: int, buffer: run_data.Buffer
) -> advice.Advice:
    """Of an argument that is there before and after the program: others have no layout that it could give."""
    arguments = [notices.arguments.get(id(launch.plan), []) for launch in watched.kernels]
    mine = arguments[number][buffer["address"]] if buffer["address"] < len(arguments[number]) else None
    if buffer["kind"] != "input" or mine is None:
        return {}
    launches = _launches(run)
    uses = [
        advice.Use(kernel, launch, position, launches[at])
        for at, (kernel, launch) in enumerate(zip(run["kernels"], watched.kernels, strict=True))
        for position, storage in enumerate(arguments[at])
        if storage == mine
    ]
    if len({id(use.launch) for use in uses}) < len(uses):  # one kernel has several views of it
        return {}
    return advice.other_layout(buffer, uses)


def _not_in_lx(run: run_data.RunData, watched: Watched) -> list[run_data.Finding]:
    """Values that go through device memory, those of equal layers together."""
    rows: dict[tuple[str, int], list[float]] = defaultdict(list)
    launches = _launches(run)
    for number, kernel in enumerate(run["kernels"]):
        count = launches[number]
        for position, saving in advice.savings_in_lx(watched.kernels[number]).items():
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


def _padding(
    run: run_data.RunData, watched: Watched, notices: Notices, program: Program | None
) -> list[run_data.Finding]:
    """Buffers of one size along their sticks together."""
    bandwidth, launches = run["card"]["constants"]["dram_gb_per_s"] * 1000, _launches(run)  # bytes per microsecond
    alike: dict[tuple[int, int], list[tuple[float, int, run_data.Buffer]]] = defaultdict(list)
    for number, kernel in enumerate(run["kernels"]):
        for buffer in kernel["buffers"]:
            us = buffer["padding"] / bandwidth * launches[number]
            if buffer["place"] != "lx" and buffer["padding"] >= MUCH_PADDING * buffer["bytes"] and us > 0:
                alike[_size_along_sticks(buffer), buffer["layout"]["device_size"][-1]].append((us, number, buffer))
    found: list[run_data.Finding] = []
    for (size, elements), rows in sorted(alike.items(), key=lambda item: -sum(row[0] for row in item[1]))[:MOST]:
        us, number, buffer = max(rows, key=lambda row: row[0])
        if (total := sum(row[0] for row in rows)) < WORTH_US:
            continue
        finding: run_data.Finding = {
            "kind": "padding",
            "text": f"{buffer['padding']:,} of {buffer['bytes']:,} bytes of {buffer['kind']} {buffer['name']} "
            f"{buffer['dtype']}{buffer['size']} are padding: sticks have {elements} elements"
            + (f"; {len(rows) - 1} more of this size" if len(rows) > 1 else ""),
            "source": 0,
            "us": total,
            "advice": "A stick dimension that is a multiple of a stick has none; the time is that of the "
            "padding crossing device memory once.",
        }
        for saving in (
            _other_size(run, program, size, elements),
            *(_other_layout(run, watched, notices, at, each) for _, at, each in rows),
        ):
            if saving and saving["saving_us"] > finding.get("saving_us", 0.0):
                finding["advice"], finding["saving_us"] = saving["advice"], saving["saving_us"]
        found.append(finding)
    return found


def _size_along_sticks(buffer: run_data.Buffer) -> int:
    """Of the dimension that runs through its sticks; 1 if none does."""
    along = buffer["layout"]["stride_map"][-1]
    sizes = [n for n, stride in zip(buffer["size"], buffer["stride"], strict=True) if stride == along and n > 1]
    return sizes[0] if sizes else 1


def _other_size(run: run_data.RunData, program: Program | None, size: int, elements: int) -> advice.Advice:
    """The program with the whole sticks of a size alone."""
    whole = size // elements * elements
    if program is None or not whole or whole == size:
        return {}
    us = trials.with_size(program, size, whole)
    if us is None or not (saving := _saving(run, us)):
        return {}
    text = (
        f"{size} is {size - whole} more than whole sticks: with {whole} in its place the program takes {us:,.1f} us. "
        f"Up to {whole + elements} elements take the same sticks."
    )
    return {"advice": text, "saving_us": saving}


def _hints(run: run_data.RunData, watched: Watched) -> list[run_data.Finding]:
    """Kernels that are faster on all cores of the card, or as the planner divides them."""
    found: list[run_data.Finding] = []
    card = _C.card_cores(-1)
    for number, count in _launches(run).items():
        launch, before = watched.kernels[number], run["kernels"][number]["us"]
        if len(run["kernels"][number]["steps"]) > advice.MOST_STEPS:
            continue
        source = max(run["kernels"][number]["steps"], key=lambda step: step["us"], default={"source": 0})["source"]
        tried = [("without its hints", "The planner divides it better than spyre_hint does", advice.without_hints)]
        if run["card"]["cores"] < card:
            few = f"The planner may use {run['card']['cores']} of the card's {card} cores (SENCORES)"
            tried.append((f"on {card} cores", few, advice.with_all_cores))
        for how, why, time in tried:
            us = time(launch)
            if before - us >= advice.LEAST_SHARE * before and us < float("inf"):
                found.append(
                    {
                        "kind": "few cores",
                        "text": f"kernel {run['kernels'][number]['name']}: {why}",
                        "source": source,
                        "us": before * count,
                        "advice": f"It takes {us:,.1f} us {how}, and {before:,.1f} us as it is.",
                        "saving_us": (before - us) * count,
                    }
                )
    return sorted(found, key=lambda each: -each["saving_us"])[:MOST]


def _few_cores(run: run_data.RunData, watched: Watched) -> list[run_data.Finding]:
    cores, launches = run["card"]["cores"], _launches(run)
    costs: dict[tuple[int, str, str], float] = defaultdict(float)
    example: dict[tuple[int, str, str], tuple[int, int]] = {}
    for number, kernel in enumerate(run["kernels"]):
        for at, step in enumerate(kernel["steps"]):
            used = prod(step["slices"])
            if used < FEW_CORES * cores:
                key = (step["source"], step["op"], f"{'x'.join(map(str, step['extents']))} on {used} of {cores} cores")
                costs[key] += step["us"] * launches[number]
                example.setdefault(key, (number, at))
    found: list[run_data.Finding] = []
    for key, us in sorted(costs.items(), key=lambda item: -item[1])[:MOST]:
        if us > WORTH_US:
            (source, op, said), (number, at) = key, example[key]
            finding: run_data.Finding = {
                "kind": "few cores",
                "text": f"{op} over {said}",
                "source": source,
                "us": us,
            }
            found.append(_divided_otherwise(finding, run, watched, number, at))
    return found


def _divided_otherwise(
    finding: run_data.Finding, run: run_data.RunData, watched: Watched, number: int, at: int
) -> run_data.Finding:
    """The finding, with what other ways to divide the op would do."""
    kernel = run["kernels"][number]
    loop_op, count = kernel["specs"][kernel["steps"][at]["spec"]]["loop_op"], _launches(run)[number]
    if loop_op < 0:
        finding["text"] += ": the compiler added it"
        return finding
    other = advice.more_cores(watched.kernels[number], loop_op)
    if not other.count or other.us == float("inf"):
        finding["text"] += ": it does not divide over more, in whole sticks"
        return finding
    finding["text"] += f": {other.count} ways to divide it over more"
    how = "x".join(map(str, other.slices))
    if other.alone:
        finding["text"] += f", of which the fastest, {how}, takes {other.us:,.1f} us by itself"
    elif kernel["us"] - other.us >= advice.LEAST_SHARE * kernel["us"]:
        finding["advice"] = (
            f"Divided {how} the kernel takes {other.us:,.1f} us, and {kernel['us']:,.1f} us as it is: "
            "spyre_hint(work_div=...) says so."
        )
        finding["saving_us"] = (kernel["us"] - other.us) * count
    else:
        finding["text"] += f", none of which makes the kernel faster (the best, {how}: {other.us:,.1f} us)"
    return finding
