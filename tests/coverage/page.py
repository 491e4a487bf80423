"""What a run showed: the summary, the problems, and docs/supported_operations.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import bounds
from .check import MODES, Result
from .ops import CROSSES, DTYPES, LEFT_OUT, MUST_BE_NATIVE, SHAPES_ONLY, every

PATH = Path(__file__).parents[2] / "docs/supported_operations.md"
BAD = ("wrong", "error", "crash")
UNCOUNTED = ("skipped", "refused")
ENOUGH = 0.99
NATIVE = "native"
KINDS = ("exact", "composed", "spectral")

SHORT = {
    **{"float16": "f16", "bfloat16": "bf16", "float32": "f32"},
    **{"int32": "i32", "int64": "i64", "bool": "bool"},
}
assert set(SHORT) == {str(dtype).removeprefix("torch.") for dtype in DTYPES}


INTRODUCTION = """\
Written by `make coverage`, which runs the samples of PyTorch's own operator tests (OpInfo) on the card, eagerly and
compiled, and compares the results with PyTorch's on the host. Do not edit.""".splitlines()

LEGEND = """\
**native**: the card did it, and nothing crossed to the host on the way. **fallback**: some of it ran on the CPU, warned
and counted. A sample is **right** if its results lie on the card with PyTorch's shapes and dtypes, and its numbers are
within the bound below. **shapes only**: values are random or were never written, so only shapes, dtypes and devices are
compared. **refused**: the card says that it has no such numbers (a float64 result, an int64 beyond 32 bits); these are
not among the samples. The unit is that of the card: `pt` multiplies matrices, `sfp` does the rest, views need none.
""".splitlines()


def counts(results: Sequence[Result]) -> dict[str, int]:
    """Samples that are right, that are not, and that do not count."""
    found = Counter(result.outcome for result in results)
    failed, skipped = (sum(found[name] for name in names) for names in (BAD, UNCOUNTED))
    return {"passed": found["right"], "failed": failed, "skipped": skipped}


def tally(results: Iterable[Result]) -> str:
    counts = Counter(result.outcome for result in results)
    return ", ".join(f"{counts[name]} {name}" for name in ("right", *BAD, *UNCOUNTED) if counts[name])


def counted(results: Iterable[Result], mode: str, op: str | None = None) -> list[Result]:
    return [r for r in results if r.mode == mode and r.outcome not in UNCOUNTED and op in (None, r.op)]


def summary(results: Sequence[Result]) -> list[str]:
    """A table in Markdown, which reads well on a terminal too."""
    lines = ["| | ops | samples | right | | wrong | native | | shapes only | refused |", "|---" * 10 + "|"]
    for mode in MODES:
        mine = counted(results, mode)
        if mine:
            right = sum(result.outcome == "right" for result in mine)
            native = sum(result.native for result in mine)
            ops = len({result.op for result in mine})
            shapes = sum(not result.compared for result in mine)
            refused = sum(result.mode == mode and result.outcome == "refused" for result in results)
            lines.append(
                f"| {mode} | {ops} | {len(mine)} | {right} | {right / len(mine):.2%} | {len(mine) - right} "
                f"| {native} | {native / len(mine):.1%} | {shapes} | {refused} |"
            )
    return lines


def problems(results: Sequence[Result]) -> list[str]:
    """Why a run is no success, in lines."""
    found = []
    for mode in MODES:
        mine = counted(results, mode)
        if mine and sum(result.outcome == "right" for result in mine) < ENOUGH * len(mine):
            found.append(f"{mode}: less than {ENOUGH:.0%} right")
        found += [f"{mode}: {r.op} {r.dtype}: crash: {r.note}" for r in mine if r.outcome == "crash"]
        for op in sorted({result.op for result in mine} & set(MUST_BE_NATIVE)):
            found += _not_native([result for result in mine if result.op == op])
    return found


def _not_native(results: Sequence[Result]) -> list[str]:
    """Lines that say for which dtypes of an op in one mode samples did not run on the card, and what did instead."""
    dtypes: dict[str, list[str]] = {}
    for result in results:
        for where in result.elsewhere():
            dtypes.setdefault(where, []).append(result.dtype)
    first = results[0]
    return [f"{first.mode}: {first.op} has to be native: {where} ({_short(dtypes[where])})" for where in sorted(dtypes)]


def text(results: Sequence[Result]) -> str:
    names = sorted({result.op for result in results})
    rows = [_row(name, [result for result in results if result.op == name]) for name in names]
    return "\n".join(
        [
            "# Supported operations",
            "",
            *INTRODUCTION,
            "",
            *summary(results),
            "",
            *LEGEND,
            "",
            "| op | eager | compiled | dtypes | unit | notes |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            "## How far a result may be off",
            "",
            *_prose(bounds.__doc__ or ""),
            "",
            "| | ops; all others are elements |",
            "|---|---|",
            *_bounds(),
            "",
            "## Not covered",
            "",
            "| op | why |",
            "|---|---|",
            *(f"| `{name}` | {why} |" for name, why in sorted(LEFT_OUT.items())),
            "",
        ]
    )


def _row(name: str, results: Sequence[Result]) -> str:
    cells = [_where(counted(results, mode, name)) for mode in MODES]
    dtypes = " ".join(short for dtype, short in SHORT.items() if any(r.dtype == dtype for r in results))
    units = " ".join(sorted({unit for result in results for unit in result.units}))
    return f"| `{name}` | {' | '.join(cells)} | {dtypes} | {units} | {'; '.join(_notes(name, results))} |"


def _where(results: Sequence[Result]) -> str:
    """``native``, ``fallback`` or ``fails``, with the dtypes where they differ."""
    kinds: dict[str, list[str]] = {}
    for dtype in SHORT:
        mine = [result for result in results if result.dtype == dtype]
        failed = any(result.outcome in ("error", "crash") for result in mine)
        elsewhere = any(not result.native for result in mine)
        if mine:
            kinds.setdefault("fails" if failed else "fallback" if elsewhere else NATIVE, []).append(dtype)
    if len(kinds) == 1:
        return next(iter(kinds))
    return ", ".join(f"{kind} ({_short(dtypes)})" for kind, dtypes in sorted(kinds.items(), reverse=True))


def _short(dtypes: Iterable[str]) -> str:
    return " ".join(short for dtype, short in SHORT.items() if dtype in dtypes)


def _notes(name: str, results: Sequence[Result]) -> list[str]:
    notes = [f"shapes only: {SHAPES_ONLY[name]}"] if name in SHAPES_ONLY else []
    notes += [CROSSES[name][1]] if name in CROSSES else []
    notes += ["only the first result is compared"] if name in bounds.FIRST_ONLY else []
    if name not in SHAPES_ONLY and any(not result.compared for result in results):
        notes.append("shapes only where it is random")
    for mode in MODES:
        bad = [result for result in results if result.mode == mode and result.outcome in BAD]
        for kind in sorted({result.outcome for result in bad}):
            dtypes = _short({result.dtype for result in bad if result.outcome == kind})
            notes.append(f"{mode}: {kind} ({dtypes})")
    refused = {result.dtype for result in results if result.outcome == "refused"}
    if refused:
        notes.append(f"refused where the card has no such numbers ({_short(refused)})")
    where = sorted({where for result in results if result.outcome not in BAD for where in result.elsewhere()})
    if where:
        notes.append("on the CPU: " + ", ".join(f"`{op}`" for op in where))
    if any(result.breaks for result in results):
        notes.append("breaks graphs")
    return notes


def _bounds() -> list[str]:
    names = {kind: " ".join(f"`{name}`" for name in sorted(every()) if bounds.kind(name) == kind) for kind in KINDS}
    return [f"| {kind} | {names[kind]} |" for kind in KINDS]


def _prose(docstring: str) -> list[str]:
    """The text of a docstring; what it indents is a block of code in Markdown as well."""
    return docstring.split("\n\n", 1)[1].rstrip().replace("``", "`").splitlines()


def native_ops(page: str) -> set[str]:
    """The ops that a page calls native in both modes and for all dtypes."""
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    return {row[0].strip("| `") for row in rows if len(row) >= 3 and row[1] == row[2] == NATIVE}
