"""Profiles of the card and their traces, for the tests."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

Event = dict[str, Any]


def trace_of(prof: profile, directory: Path) -> list[Event]:
    """The rows of a profile's Chrome trace."""
    path = directory / "trace.json"
    prof.export_chrome_trace(str(path))
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


def on_card(events: list[Event]) -> list[Event]:
    return [event for event in events if event["cat"] in DEVICE]


def of(events: list[Event], category: str) -> list[Event]:
    return [event for event in events if event["cat"] == category]


def nanoseconds(microseconds: float) -> int:
    """Times of a trace are whole nanoseconds, written in microseconds."""
    return round(microseconds * 1000)


def check_lanes(events: list[Event]) -> None:
    """No two rows of a lane overlap, begin at the same time, or take no time."""
    lanes = defaultdict(list)
    for event in on_card(events):
        start = nanoseconds(event["ts"])
        lanes[event["pid"], event["tid"]].append((start, start + nanoseconds(event["dur"])))
    for rows in lanes.values():
        rows.sort()
        assert all(end > start for start, end in rows)
        assert all(end <= start for (_, end), (start, _) in zip(rows, rows[1:], strict=False))


def check_nesting(events: list[Event]) -> None:
    """Rows of a lane lie in each other or apart, also for readers that add times up in floating point.

    Viewers drop what overlaps otherwise.
    """
    lanes = defaultdict(list)
    for event in events:
        lanes[event["pid"], event["tid"]].append((event["ts"], -event["dur"], event["name"]))
    for rows in lanes.values():
        around: list[tuple[float, str]] = []
        for start, longer, name in sorted(rows):
            while around and around[-1][0] <= start:
                around.pop()
            assert not around or start - longer <= around[-1][0], f"{name} ends behind {around[-1][1]}"
            around.append((start - longer, name))


def modelled_ms(events: list[Event]) -> float:
    return sum(event["args"]["modelled_ns"] for event in on_card(events)) / 1e6


def halves(*size: int) -> torch.Tensor:
    return torch.randn(size).half().to("spyre")


def event() -> torch.Event:
    """A mark in the current stream."""
    made = torch.spyre.Event(enable_timing=True)
    made.record()
    return made
