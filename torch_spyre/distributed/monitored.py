"""``torch.distributed.monitored_barrier`` for groups of cards: PyTorch's refuses all backends but Gloo by name."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..constants import DEVICE_NAME, DISTRIBUTED_BACKEND_NAME


def of_cards(original: Any) -> Any:
    """The function for groups whose barrier is Gloo's as before, for groups of cards the backend's own."""

    @functools.wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        backend = _backend(group)
        if backend is None:
            return original(group, timeout, wait_all_ranks)
        if isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        backend.monitored_barrier(timeout, wait_all_ranks)

    return monitored_barrier


def of_group(original: Any) -> Any:
    """The same as a method of a group."""

    @functools.wraps(original)
    def monitored_barrier(self: Any, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        if _backend(self) is not None:
            return of_cards(None)(self, timeout, wait_all_ranks)
        return original(self, *(() if timeout is None else (timeout,)), wait_all_ranks=wait_all_ranks)

    return monitored_barrier


def _backend(group: Any) -> Any:
    """The group's backend for cards, if only that can carry out the barrier."""
    if group is dist.GroupMember.NON_GROUP_MEMBER or not dist.is_initialized():
        return None
    group = group or dist.group.WORLD
    types = {device.type for device in group._device_types}
    if DEVICE_NAME not in types or "cpu" in types:
        return None
    backend = group._get_backend(torch.device(DEVICE_NAME))
    return backend if backend.name() == DISTRIBUTED_BACKEND_NAME else None
