"""The pyramid of a night: how each level went, what failed, and what is other than in the night before.

Levels go by where a test lies, or by the job for those that count without naming their tests.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from xml.etree import ElementTree

from tests.nightly.runner import Outcome

# From the bottom to the top: folders of tests, and layers of jobs without named tests.
LEVELS = {
    "card": (("tests/card",), ("card",)),
    "op": (("tests/ops", "tests/generic/test_ops", "tests/coverage"), ("coverage",)),
    "compiler": (
        ("tests/inductor", "tests/passes", "tests/ir", "tests/backend", "tests/execution", "tests/fuzz", "tests/ktir"),
        ("fuzz", "fuzz plans", "mutation"),
    ),
    "device": (("tests/device", "tests/eager", "tests/distributed"), ("process groups",)),
    "module": (("tests/generic/test_modules",), ()),
    "model": (("tests/models",), ("models", "architectures")),
    "serving": (("tests/serving",), ("serving",)),
    "tools": (("tests",), ()),  # everything else
}
KEPT = 200  # nights of the history


@dataclass
class Level:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    minutes: float = 0.0

    @property
    def rate(self) -> float | None:
        ran = self.passed + self.failed
        return self.passed / ran if ran else None


@dataclass
class Night:
    """``failures``: names of tests that failed, and of jobs that failed without naming any."""

    commit: str
    levels: dict[str, Level] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Changes:
    since: str
    broken: list[str]
    repaired: list[str]
    counts: dict[str, int]  # of each level: how many tests more ran


def collect(commit: str, outcomes: Sequence[Outcome], state: Path, missing: Sequence[str] = ()) -> Night:
    """Of all jobs that have run, from what they left in the directory of the commit."""
    night = Night(commit, {name: Level() for name in LEVELS}, [], list(missing))
    for outcome in outcomes:
        cases = _cases(state / (outcome.name.replace(" ", "_") + ".result"))
        if cases:
            for name, how, seconds in cases:
                level = night.levels[level_of(name)]
                setattr(level, how, getattr(level, how) + 1)
                level.minutes += seconds / 60
                night.failures += [name] if how == "failed" else []
        else:
            of_job = next((name for name, (_, layers) in LEVELS.items() if outcome.layer in layers), "tools")
            level = night.levels[of_job]
            for count in ("passed", "failed", "skipped", "minutes"):
                setattr(level, count, getattr(level, count) + getattr(outcome, count))
        if not outcome.ok and not any(how == "failed" for _, how, _ in cases):
            night.failures.append(f"the job {outcome.name}")
    night.failures = sorted(set(night.failures))
    return night


def _cases(result: Path) -> list[tuple[str, str, float]]:
    """Of JUnit's XML: the name of each test, how it went, and its seconds."""
    try:
        root = ElementTree.fromstring(result.read_text())
    except (OSError, ElementTree.ParseError):
        return []
    found = []
    for case in root.iter("testcase"):
        kinds = {child.tag for child in case}
        how = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        where = str(case.get("classname")).replace(".", "/")
        found.append((f"{where}::{case.get('name')}", how, float(case.get("time", 0))))
    return found


def level_of(test: str) -> str:
    """The level whose folder the test lies in: the longest name counts."""
    matches = [(len(start), name) for name, (starts, _) in LEVELS.items() for start in starts if test.startswith(start)]
    return max(matches)[1] if matches else "tools"


def remember(night: Night, history: Path) -> list[Night]:
    """All nights, this one last. It takes the place of an earlier one of the same commit."""
    nights = [each for each in recall(history) if each.commit != night.commit][1 - KEPT :] + [night]
    history.write_text(json.dumps([asdict(each) for each in nights], indent=1) + "\n")
    return nights


def recall(history: Path) -> list[Night]:
    try:
        entries = json.loads(history.read_text())
        return [
            Night(**{**entry, "levels": {name: Level(**level) for name, level in entry["levels"].items()}})
            for entry in entries
        ]
    except (OSError, ValueError, TypeError, KeyError):  # there is none, or it is of another form
        return []


def changes(nights: Sequence[Night]) -> Changes | None:
    """Between the last two; None for a first night."""
    if len(nights) < 2:
        return None
    before, now = nights[-2:]
    counts = {
        name: level.passed + level.failed - (old.passed + old.failed)
        for name, level in now.levels.items()
        if (old := before.levels.get(name, Level()))
    }
    broken, repaired = set(now.failures) - set(before.failures), set(before.failures) - set(now.failures)
    return Changes(before.commit, sorted(broken), sorted(repaired), counts)


def html(nights: Sequence[Night]) -> str:
    night, changed = nights[-1], changes(nights)
    rows = "".join(_row(name, level, nights, changed) for name, level in reversed(night.levels.items()))
    parts = [f"<table><tr>{_HEAD}</tr>{rows}</table>"]
    if changed is None:
        parts.append("<p>There is no earlier night to compare with.</p>")
    else:
        parts.append(f"<h2>Since {escape(changed.since)}</h2>")
        parts.append(_list("Fail now", changed.broken) + _list("Pass again", changed.repaired))
        if not changed.broken and not changed.repaired:
            parts.append("<p>No test that passed fails, and none that failed passes.</p>")
    parts.append("<h2>What failed</h2>" + (_list("", night.failures) or "<p>Nothing.</p>"))
    if night.missing:
        parts.append("<h2>Not run</h2>" + _list("", night.missing))
    return _PAGE.format(commit=escape(night.commit), body="\n".join(parts))


def _row(name: str, level: Level, nights: Sequence[Night], changed: Changes | None) -> str:
    rate = "–" if level.rate is None else f"{100 * level.rate:.2f} %"
    more = f"{changed.counts.get(name, 0):+d}" if changed else ""
    cells = [level.passed, level.failed, level.skipped, rate, f"{level.minutes:.1f}", more]
    return f"<tr><th>{name}</th>{''.join(f'<td>{each}</td>' for each in cells)}<td>{_history(name, nights)}</td></tr>"


def _history(name: str, nights: Sequence[Night], width: int = 4, height: int = 18) -> str:
    """A bar for each night: how high says how much passed, from nine tenths on; red where something failed."""
    shown, bars = nights[-40:], []
    for i, night in enumerate(shown):
        rate = night.levels.get(name, Level()).rate
        if rate is not None:
            tall = max(2.0, height * (rate - 0.9) / 0.1)
            kind = "bad" if rate < 1 else "good"
            place = f'x="{i * width}" y="{height - tall:.1f}" width="{width - 1}" height="{tall:.1f}"'
            bars.append(
                f'<rect class="{kind}" {place}><title>{escape(night.commit)}: {100 * rate:.2f} %</title></rect>'
            )
    return f'<svg width="{width * len(shown)}" height="{height}">{"".join(bars)}</svg>'


def _list(title: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    entries = "".join(f"<li><code>{escape(name)}</code></li>" for name in names)
    return (f"<h3>{title}</h3>" if title else "") + f"<ul>{entries}</ul>"


_HEAD = "".join(
    f"<th>{name}</th>"
    for name in ("level", "passed", "failed", "skipped", "rate", "minutes", "tests more", "nights before")
)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Night of {commit}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
td, th {{ padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #8886; }}
th:first-child {{ text-align: left; }}
.good {{ fill: #2e9e4f; }} .bad {{ fill: #d0453c; }}
code {{ overflow-wrap: anywhere; }}
</style></head><body>
<h1>Night of {commit}</h1>
{body}
</body></html>
"""
