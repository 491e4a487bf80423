"""Memory of the cards in words and in detail, in the forms that ``torch.cuda`` gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _C

_WIDTH = 75
_STATES = {"allocated": "active_allocated", "pending": "active_pending_free", "free": "inactive"}


def _scaled(units: list[str], step: int, most: int) -> Callable[[int], str]:
    def text(number: int) -> str:
        unit = 0
        while number >= most and unit + 1 < len(units):
            number //= step
            unit += 1
        return f"{number:6d} {units[unit]}"

    return text


_bytes = _scaled(["B  ", "KiB", "MiB", "GiB", "TiB"], 1024, 768 * 1024)
_count = _scaled(["   ", "K  ", "M  "], 1000, 750 * 1000)
_ROWS = (
    ("allocated_bytes", "Allocated memory", _bytes),
    ("active_bytes", "Active memory", _bytes),
    ("requested_bytes", "Requested memory", _bytes),
    ("reserved_bytes", "Reserved memory", _bytes),
    ("inactive_split_bytes", "Non-releasable memory", _bytes),
    ("allocation", "Allocations", _count),
    ("segment", "Reserved segments", _count),
)


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of the allocator's statistics, for people to read; abbreviated, without what is not in use."""
    from . import _index_of, memory

    index = _index_of(device)
    stats = memory.memory_stats(index)
    free, total = memory.mem_get_info(index)
    lines = [
        "=" * _WIDTH,
        f"PyTorch Spyre memory summary, device ID {index}".center(_WIDTH),
        "-" * _WIDTH,
        f"OOMs: {stats['num_ooms']:<8d} | alloc retries: {stats['num_alloc_retries']:<8d}".center(_WIDTH),
        f"free: {_bytes(free).strip()} of {_bytes(total).strip()}".center(_WIDTH),
        "=" * _WIDTH,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
    ]
    for key, name, text in _ROWS:
        numbers = [stats[f"{key}.all.{each}"] for each in ("current", "peak", "allocated", "freed")]
        if abbreviated and not any(numbers):
            continue
        lines += ["-" * _WIDTH, f" {name:<21} | " + " | ".join(map(text, numbers)) + " "]
    lines.append("=" * _WIDTH)
    return "".join(f"|{line:<{_WIDTH}}|\n" for line in lines)


def memory_snapshot(mempool_id: Any = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """Every reserved segment of all cards, and the blocks it is divided into, in the order of addresses.

    Cards have no memory pools (``mempool_id``), and allocations are not traced (``include_traces``): blocks have no
    frames. Addresses are offsets in the card's memory.
    """
    if mempool_id is not None:
        raise ValueError("a card has no memory pools: mempool_id must be None")
    return [_segment(index, *chunk) for index in range(_C.device_count()) for chunk in _C.memory_snapshot(index)]


def _segment(index: int, address: int, total: int, small: bool, parts: list[tuple[int, int, str]]) -> dict[str, Any]:
    allocated = sum(size for _, size, state in parts if state == "allocated")
    active = sum(size for _, size, state in parts if state != "free")
    return {
        "device": index,
        "address": address,
        "total_size": total,
        "allocated_size": allocated,
        "active_size": active,
        "requested_size": allocated,
        "stream": 0,
        "segment_type": "small" if small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": [
            {"address": at, "size": size, "requested_size": size, "state": _STATES[state], "frames": []}
            for at, size, state in parts
        ],
    }
