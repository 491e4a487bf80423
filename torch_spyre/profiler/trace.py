"""The rows of cards in a profile."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class DeviceRow:
    """A step or a transfer of a card. Times are those of the modelled clock."""

    name: str
    category: str
    card: int
    stream: int
    start: int  # picoseconds
    duration: int
    args: dict[str, Any]

    @property
    def end(self) -> int:
        return self.start + self.duration


def device_rows(trace: str | Path) -> list[DeviceRow]:
    """All rows of cards in a Chrome trace, ``.json`` or ``.json.gz``, in the order of the modelled clock.

    Raises ValueError for what is no trace of a card.
    """
    path = Path(trace)
    try:
        data = path.read_bytes()
        events = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
        rows = [_row(event) for event in events if event.get("cat") in CATEGORIES and event["ph"] == "X"]
    except (ValueError, TypeError, KeyError, AttributeError, EOFError, RecursionError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is no trace of a profile of the card: {type(error).__name__}: {error}") from None
    return sorted(rows, key=lambda row: (row.card, row.stream, row.start))


def _row(event: dict[str, Any]) -> DeviceRow:
    args = event["args"]
    return DeviceRow(
        name=str(event["name"]),
        category=event["cat"],
        card=int(args["device"]),
        stream=int(args["stream"]),
        start=round(1000 * args["modelled_start_ns"]),
        duration=round(1000 * args["modelled_ns"]),
        args=args,
    )
