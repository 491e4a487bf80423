"""A trace on the modelled clock alone: the cards without the host, the same on every run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .trace import DeviceRow, device_rows

Event = dict[str, Any]

# Counters of a card, and what a row adds to each while it runs.
_UNITS: dict[str, Callable[[DeviceRow], float]] = {
    "matrix unit (%)": lambda row: 100 * float(row.args.get("pt_util", 0)),
    "vector unit (%)": lambda row: 0.0 if _on_matrix_unit(row) else _share(row, "compute_us"),
    "DRAM (GB/s)": lambda row: _rate(row, "bytes_read", "bytes_written"),
    "ring (GB/s)": lambda row: _rate(row, "bytes_ring"),
    "LX (bytes per core)": lambda row: float(row.args.get("lx_bytes", 0)),
}
_CORES = 1000  # what the process numbers of the cores' lanes begin with


def export_modelled_trace(trace: str | Path, path: str | Path, *, units: bool = False, cores: bool = False) -> None:
    """Write what an exported Chrome trace has of cards as a trace in which rows lie where the modelled clock has them.

    ``units`` adds counters of each card: how much of its matrix units and vector units work, the rates of its memory
    and ring, and the bytes of LX that hold something. ``cores`` adds a lane for each core, with the steps that it takes
    part in; such a trace is up to 33 times as large.
    """
    rows = device_rows(trace)
    events = [*_lanes(rows), *map(_event, rows)]
    if units:
        events += _counters(rows)
    if cores:
        events += _core_lanes(rows)
    Path(path).write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))


def _event(row: DeviceRow) -> Event:
    return {
        "ph": "X",
        "cat": row.category,
        "name": row.name,
        "pid": row.card,
        "tid": row.stream,
        "ts": _microseconds(row.start),
        "dur": _microseconds(row.duration),
        "args": row.args,
    }


def _lanes(rows: Iterable[DeviceRow]) -> Iterator[Event]:
    lanes = sorted({(row.card, row.stream) for row in rows})
    for card in sorted({card for card, _ in lanes}):
        yield _name("process_name", card, 0, f"spyre:{card}, modelled clock")
    for card, stream in lanes:
        yield _name("thread_name", card, stream, f"stream {stream}")


def _counters(rows: list[DeviceRow]) -> Iterator[Event]:
    for card in sorted({row.card for row in rows}):
        edges = [edge for row in rows if row.card == card for edge in ((row.end, False, row), (row.start, True, row))]
        edges.sort(key=lambda edge: edge[:2])
        running: list[DeviceRow] = []  # one of each stream at most
        for i, (time, begins, row) in enumerate(edges):
            running.append(row) if begins else running.remove(row)
            if i + 1 < len(edges) and edges[i + 1][0] == time:
                continue
            for unit, value in _UNITS.items():
                total = sum(map(value, running))
                yield {
                    "ph": "C",
                    "name": unit,
                    "pid": card,
                    "ts": _microseconds(time),
                    "args": {"value": round(total, 3)},
                }


def _core_lanes(rows: Iterable[DeviceRow]) -> Iterator[Event]:
    named: set[tuple[int, int]] = set()
    for row in rows:
        process = _CORES * (1 + row.card) + row.stream
        for core in range(int(row.args.get("cores", 0))):
            if (process, core) not in named:
                named.add((process, core))
                yield _name("process_name", process, 0, f"cores of spyre:{row.card}, stream {row.stream}")
                yield _name("thread_name", process, core, f"core {core}")
            yield {**_event(row), "pid": process, "tid": core, "cat": "core", "args": {"op": row.args.get("op")}}


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}


def _on_matrix_unit(row: DeviceRow) -> bool:
    return float(row.args.get("ideal_us", 0)) > 0


def _share(row: DeviceRow, part: str) -> float:
    """Percent of the row's time."""
    return 100 * min(1.0, 1e6 * float(row.args.get(part, 0)) / row.duration)


def _rate(row: DeviceRow, *counts: str) -> float:
    """Bytes per nanosecond."""
    return sum(int(row.args.get(count, 0)) for count in counts) * 1000 / row.duration


def _microseconds(picoseconds: int) -> float:
    return round(picoseconds / 1e6, 6)
