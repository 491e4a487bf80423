"""Memory of the card: allocated, cached and free."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ..constants import DEVICE_NAME
from .memory_report import memory_snapshot, memory_summary

__all__ = [
    "device_memory_used",
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]

empty_cache = torch.accelerator.memory.empty_cache


def _for_card(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.accelerator's function, for the card that a device argument means."""

    @wraps(function)
    def of_card(device: Any = None) -> Any:
        from . import _index_of

        return function(torch.device(DEVICE_NAME, _index_of(device)))

    return of_card


memory_allocated = _for_card(torch.accelerator.memory.memory_allocated)
max_memory_allocated = _for_card(torch.accelerator.memory.max_memory_allocated)
memory_reserved = _for_card(torch.accelerator.memory.memory_reserved)
max_memory_reserved = _for_card(torch.accelerator.memory.max_memory_reserved)
memory_stats = _for_card(torch.accelerator.memory.memory_stats)
reset_peak_memory_stats = _for_card(torch.accelerator.memory.reset_peak_memory_stats)
reset_accumulated_memory_stats = _for_card(torch.accelerator.memory.reset_accumulated_memory_stats)
mem_get_info = _for_card(torch.accelerator.memory.get_memory_info)


def device_memory_used(device: Any = None) -> int:
    """Bytes of a card's memory that are in use, by tensors or by work that is queued."""
    free, total = mem_get_info(device)
    return total - free


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """The statistics of :func:`memory_stats`, with a dictionary for each part of a name."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *parts, last = name.split(".")
        inner = nested
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested
