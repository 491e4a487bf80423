"""A report of a run, for people: text, HTML for notebooks, and JSON for other programs."""

from __future__ import annotations

import html
import json
import os
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from . import explorer
from .run_data import RunData

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
        """For a terminal: totals, where the time goes, findings. ``top``: rows of each."""
        return "\n".join([*self._head(), *self._ops(top), *self._bounds(), *self._buffers(), *self._told(top)])

    def to_json(self) -> str:
        return json.dumps(self.data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As JSON."""
        Path(path).write_text(self.to_json())

    def explore(self, path: str | os.PathLike[str], other: Report | None = None) -> None:
        """Writes the explorer, an HTML file that needs nothing else; with ``other``, to compare with that run."""
        explorer.write(self.data, Path(path), other.data if other else None)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text())}</pre>"

    def line(self, source: int) -> str:
        """``model.py:12 self.norm(x)``; empty where the line is unknown."""
        text = self.data["texts"][source]
        at = _SOURCE.match(text)
        if at is None:
            return text
        said = self.data["files"].get(at[1], {}).get(at[2], "").strip()
        return f"{Path(at[1]).name}:{at[2]} {said}".rstrip()

    def _head(self) -> list[str]:
        data, totals = self.data, self.data["totals"]
        fallbacks = sum(row["count"] for row in data["eager"] if row["fallback"])
        eager = sum(row["count"] for row in data["eager"]) - fallbacks
        breaks = sum(each["kind"] == "graph break" for each in data["findings"])
        moved, needed = totals["moved_bytes"], totals["compulsory_bytes"]
        lines = [
            data["title"],
            f"  {totals['us']:,.1f} us modelled: {len(data['launches'])} launches of {len(data['kernels'])} compiled "
            f"kernels {totals['launched_us']:,.1f} us; {eager} eager ops, transfers and waits "
            f"{totals['other_us']:,.1f} us",
            f"  {fallbacks} fallbacks, {breaks} graph breaks",
        ]
        if totals["least_us"]:
            lines.append(
                f"  at least {totals['least_us']:,.1f} us for these ops: the launches take "
                f"{totals['launched_us'] / totals['least_us']:.2f} times that"
            )
        if needed:
            lines.append(
                f"  {moved / 1e6:,.1f} MB through device memory, {needed / 1e6:,.1f} MB of arguments and results"
            )
        if "failure" in data:
            lines.append(f"  failed: {data['failure']}")
        return lines

    def _ops(self, top: int) -> list[str]:
        rows: dict[tuple[str, int, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        for launch in self.data["launches"]:
            for step in self.data["kernels"][launch["kernel"]]["steps"]:
                row = rows[step["op"], step["source"], step["bound_by"]]
                row[0] += 1
                row[1] += step["us"]
                row[2] += step["least_us"]
        if not rows:
            return []
        total = self.data["totals"]["us"] or 1.0
        lines = ["", f"{'us':>12} {'share':>7} {'x':>5} {'of bound':>9}  {'bound by':<14} {'op':<20} line"]
        ordered = sorted(rows.items(), key=lambda item: -item[1][1])
        for (op, source, bound), (count, us, least) in ordered[:top]:
            of = f"{us / least:9.2f}" if least else f"{'-':>9}"
            lines.append(
                f"{us:12.2f} {us / total:7.1%} {count:5.0f} {of}  {bound:<14} {op:<20} {self.line(source)[:80]}"
            )
        if rest := ordered[top:]:
            us = sum(row[1] for _, row in rest)
            lines.append(f"{us:12.2f} {us / total:7.1%}  {len(rest)} more rows")
        return lines

    def _bounds(self) -> list[str]:
        found: dict[str, float] = defaultdict(float)
        for launch in self.data["launches"]:
            for step in self.data["kernels"][launch["kernel"]]["steps"]:
                found[step["bound_by"]] += step["us"]
        if not found:
            return []
        said = ", ".join(f"{name} {us:,.1f} us" for name, us in sorted(found.items(), key=lambda item: -item[1]))
        return ["", f"bound by: {said}"]

    def _buffers(self) -> list[str]:
        inside = [each for kernel in self.data["kernels"] for each in kernel["buffers"] if each["kind"] == "internal"]
        if not inside:
            return []
        stay = [each for each in inside if each["place"] == "lx"]
        return ["", f"{len(stay)} of {len(inside)} values inside kernels stay in LX"]

    def _told(self, top: int) -> list[str]:
        lines = []
        for each in self.data["findings"][:top]:
            saving = f"saves {each['saving_us']:,.1f} us" if "saving_us" in each else f"costs {each['us']:,.1f} us"
            line = self.line(each["source"])
            lines.append(f"  {each['kind']}, {saving}: {each['text']}" + (f"\n    at {line}" if line else ""))
            if "advice" in each:
                lines.append(f"    {each['advice']}")
        return ["", "worth looking at, the most first:", *lines] if lines else ["", "nothing stands out"]
