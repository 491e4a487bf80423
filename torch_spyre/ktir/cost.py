"""What a function asks of the card: bytes, units, what bounds it. Four digits, so that a difference is a change."""

from __future__ import annotations

import json
from typing import Any

from ..card import description


def report(function: str, measured: dict[str, Any]) -> str:
    """Of Module.measure."""
    ghz = float(description.constants()["core_ghz"])
    lines = [f"@{function}: {digits(measured['picoseconds'] / 1e6)} us, bound by {measured['bound_by']}"]
    moved = unique = 0
    for name, read, written, unique_read, unique_written in measured["regions"]:
        if not read + written:
            continue
        moved += read + written
        unique += unique_read + unique_written
        lines.append(
            f"  {name}: read {digits(read)}, written {digits(written)}, unique {digits(unique_read + unique_written)}, "
            f"ratio {digits((read + written) / max(unique_read + unique_written, 1))} bytes"
        )
    lines.append(f"  all: moved {digits(moved)}, unique {digits(unique)}, ratio {digits(moved / max(unique, 1))} bytes")
    lines.append(
        f"  core {measured['critical_core']}: vector unit {digits(measured['vector_ns'] * ghz)}, "
        f"matrix unit {digits(measured['matrix_ns'] * ghz)} cycles"
    )
    lines.append(
        f"  begin {digits(measured['begin_ns'])}, memory {digits(measured['memory_ns'])}, "
        f"compute {digits(measured['compute_ns'])}, ring {digits(measured['ring_ns'])} ns"
    )
    return "\n".join(lines)


def digits(number: float) -> str:
    return f"{number:.4g}"


def trace(function: str, measured: dict[str, Any]) -> str:
    """A timeline of every core, for chrome://tracing and Perfetto."""
    events: list[dict[str, Any]] = []
    for core, spans in enumerate(measured["spans"]):
        begin = measured["begin_ns"]
        for where, ns, matrix in spans:
            events.append(
                {"name": where, "cat": "matrix unit" if matrix else "vector unit", "ph": "X", "pid": function}
                | {"tid": f"core {core}", "ts": begin / 1000, "dur": ns / 1000}
            )
            begin += ns
    memory = {"name": "device memory", "cat": "memory", "ph": "X", "pid": function, "tid": "memory"}
    events.append(memory | {"ts": measured["begin_ns"] / 1000, "dur": measured["memory_ns"] / 1000})
    return json.dumps({"traceEvents": events})
