"""How the device's own ops divide a DTensor."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from ..ops import custom  # noqa: F401 - defines them


def register(_: ModuleType) -> None:
    """Called once ``torch.distributed.tensor`` is imported."""
    from torch.distributed.tensor.experimental import register_sharding

    register_sharding(torch.ops.spyre.attention.default)(_attention)


def _attention(query: Any, key: Any, value: Any, mask: Any = None, *_: object) -> list[tuple[list[Any], list[Any]]]:
    """By batches and by heads. Heads of keys that several heads of queries share stay together with them, so those are
    not divided."""
    from torch.distributed.tensor import Replicate, Shard

    ways: list[tuple[list[Any], list[Any]]] = [([Replicate()], [Replicate()] * (3 if mask is None else 4))]
    for dim in range(query.ndim - 2):
        size = query.shape[dim]
        if any(each.shape[dim] not in (1, size) for each in (key, value)):
            continue
        placed: list[Any] = [Shard(dim)]
        placed += [Shard(dim) if each.shape[dim] == size else Replicate() for each in (key, value)]
        if mask is not None:
            at = dim - query.ndim + mask.ndim
            placed.append(Shard(at) if at >= 0 and mask.shape[at] == size else Replicate())
        ways.append(([Shard(dim)], placed))
    return ways
