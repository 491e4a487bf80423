"""A world of several cards on one process without peers, for a card that computes no values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from .. import _C
from ..constants import DISTRIBUTED_BACKEND_NAME
from .backend import register

_in_lone_world = False


def is_lone() -> bool:
    """Whether groups that are made now are lone."""
    return _in_lone_world


@contextmanager
def lone_world(size: int, rank: int = 0) -> Iterator[None]:
    """A default process group of ``size`` members that this process stands for, as member ``rank``.

    All of them are taken to do what this one does at the time when it does it, so modelled times are those that
    ``size`` equal processes report. Groups and meshes of the world are lone too. Only for ``SPYRE_CARD=timing``:
    nothing is sent, and values mean nothing.
    """
    global _in_lone_world
    if dist.is_initialized():
        raise RuntimeError("a lone world is a default process group of its own, and there is one already")
    if _C.card_mode() != "timing":
        raise RuntimeError(
            f"one process stands for {size} cards only where there are no values: SPYRE_CARD=timing, not "
            f"{_C.card_mode()!r}"
        )
    if not 0 <= rank < size:
        raise ValueError(f"there is no rank {rank} among {size}")
    register()
    _in_lone_world = True
    try:
        dist.init_process_group(DISTRIBUTED_BACKEND_NAME, store=dist.HashStore(), rank=rank, world_size=size)
        yield
    finally:
        _in_lone_world = False
        if dist.is_initialized():
            dist.destroy_process_group()
