"""Phases of a model as a person reads them: how long, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .. import device
from ..card import description
from ..timing import Row
from ..units import size
from .phases import Phase

_LINE_WIDTH = 72  # of what is shown of a program's line


def text(phase: Phase, top: int) -> str:
    recording, rows = phase.recording, phase.recording.rows()
    total = recording.milliseconds * 1000
    facts = [
        (phase.name, _headline(phase)),
        ("launches", _launches(phase)),
        ("fallbacks", ", ".join(f"{op} {count}×" for op, count in recording.fallbacks.items()) or "none"),
        ("compiled", f"in {phase.compile_seconds:.1f} s"),
        ("at least", f"{_least(rows) / 1000:.2f} ms: every op at the limit of its unit or of device memory"),
        *(_cards(phase) if phase.cards > 1 else ()),
    ]
    lines = [f"{label:<11} {said}" for label, said in facts]
    lines += ["", _HEAD, *(_line(row, total) for row in rows[:top])]
    if rest := rows[top:]:
        lines.append(_sums(f"{len(rest)} more rows", rest, total))
    lines.append(_sums("all launches", rows, total))
    if recording.communication_ms:
        waiting = recording.communication_ms
        lines.append(f"{waiting:9.3f} {waiting * 1000 / total:7.1%}  waiting for other cards")
    if abs(recording.other_us) > 1e-3:
        other = recording.other_us
        lines.append(f"{other / 1000:9.3f} {other / total:7.1%}  eager ops, transfers and waits between launches")
    return "\n".join(lines)


def as_dict(phase: Phase) -> dict[str, Any]:
    """Everything about a phase, for other programs."""
    recording, rows = phase.recording, phase.recording.rows()
    return {
        "phase": phase.name,
        "tokens": phase.tokens,
        "context": phase.context,
        "batch": phase.batch,
        "milliseconds": recording.milliseconds,
        "least_milliseconds": _least(rows) / 1000,
        "other_us": recording.other_us,
        "communication_ms": recording.communication_ms,
        "cards": phase.cards,
        "collectives": phase.collectives,
        "floor_milliseconds": phase.floor,
        "card_memory_bytes": phase.memory,
        "launches": recording.starts + recording.eager_launches,
        "fallbacks": recording.fallbacks,
        "compile_seconds": phase.compile_seconds,
        "rows": [asdict(row) | {"bound_by": row.bound_by, "line": row.line} for row in rows],
    }


def _headline(phase: Phase) -> str:
    sequences = f"{phase.batch} × " if phase.batch > 1 else ""
    of = f"{sequences}{phase.tokens} tokens" if phase.name == "prefill" else f"{sequences}1 token after {phase.context}"
    milliseconds = phase.recording.milliseconds
    rate = phase.batch * phase.tokens / milliseconds * 1000
    return f"{milliseconds:.2f} ms for {of}, modelled ({rate:,.1f} tokens/s)"


def _launches(phase: Phase) -> str:
    compiled, eager = phase.recording.starts, phase.recording.eager_launches
    apart = description.constants()["host_launch_us"] / 1000
    said = f"{compiled + eager}" + (f", {eager} of them eager ops" if eager else "")
    return f"{said}; the host's {apart:g} ms for each are not in these times"


def _cards(phase: Phase) -> list[tuple[str, str]]:
    recording = phase.recording
    waiting, total = recording.communication_ms, device.mem_get_info()[1]
    return [
        ("exchange", f"{waiting:.2f} ms, {waiting / recording.milliseconds:.1%}, waiting for {phase.collectives} "
                     "collectives; what else they take is behind work"),
        ("floor", f"{phase.floor:.2f} ms, of which this is {recording.milliseconds / phase.floor:.2f}×: the weights "
                  f"and the cache read once, or the multiply-adds, by {phase.cards} cards"),
        ("in use", f"{size(phase.memory)} of the card's {size(total)}"),
    ]  # fmt: skip


def _least(rows: Sequence[Row]) -> float:
    return sum(row.least_us for row in rows)


_HEAD = f"{'ms':>9} {'share':>7} {'×':>5} {'of bound':>9} {'DRAM MB':>9} {'LX MB':>8}  {'bound by':<14} {'op':<40} line"


def _line(row: Row, total: float) -> str:
    return f"{_numbers([row], total)}  {row.bound_by:<14} {_op(row):<40} {_short(row.line)}".rstrip()


def _sums(label: str, rows: Sequence[Row], total: float) -> str:
    return f"{_numbers(rows, total)}  {'':<14} {label}"


def _numbers(rows: Sequence[Row], total: float) -> str:
    us, least = sum(row.us for row in rows), _least(rows)
    times = f"{us / least:.2f}×" if least >= us / 1000 else ""
    return (
        f"{us / 1000:9.3f} {us / total:7.1%} {sum(row.count for row in rows):5} {times:>9}"
        f" {sum(row.dram_bytes for row in rows) / 1e6:9.1f} {sum(row.lx_bytes for row in rows) / 1e6:8.1f}"
    )


def _op(row: Row) -> str:
    cores = "×".join(map(str, row.slices))
    return f"{row.op} {'×'.join(map(str, row.extents))} on {cores}"


def _short(line: str) -> str:
    return line if len(line) <= _LINE_WIDTH else line[: _LINE_WIDTH - 1] + "…"
