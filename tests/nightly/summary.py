"""One summary of a night: a line for each layer, and the jobs that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tests.nightly.runner import Outcome


def summarize(outcomes: Sequence[Outcome], commit: str, missing: Sequence[str] = ()) -> dict[str, Any]:
    """``missing``: names of jobs that have not run."""
    layers: dict[str, dict[str, Any]] = {}
    for each in outcomes:
        layer = layers.setdefault(each.layer, {"passed": 0, "failed": 0, "skipped": 0, "minutes": 0.0})
        for key in layer:
            layer[key] += getattr(each, key)
    for layer in layers.values():
        ran = layer["passed"] + layer["failed"]
        layer["rate"] = layer["passed"] / ran if ran else None
    notes = [asdict(each) for each in outcomes if each.note]
    minutes = sum(each.minutes for each in outcomes)
    return {"commit": commit, "layers": layers, "minutes": minutes, "notes": notes, "missing": list(missing)}


def text(summary: dict[str, Any]) -> str:
    lines = [f"commit {summary['commit']}"]
    lines.append(f"{'layer':<14}{'passed':>9}{'failed':>9}{'skipped':>9}{'rate':>10}{'minutes':>9}")
    for name, layer in summary["layers"].items():
        rate = "-" if layer["rate"] is None else f"{100 * layer['rate']:.2f} %"
        counts = "".join(f"{layer[key]:>9}" for key in ("passed", "failed", "skipped"))
        lines.append(f"{name:<14}{counts}{rate:>10}{layer['minutes']:>9.1f}")
    lines.append(f"{'all':<14}{'':>37}{summary['minutes']:>9.1f}")
    lines += [f"{each['name']}: {'' if each['ok'] else 'FAILED, '}{each['note']}" for each in summary["notes"]]
    if summary["missing"]:
        lines.append(f"not run: {', '.join(summary['missing'])}")
    return "\n".join(lines)
