"""The backend's registration, and what a process group takes of the machine."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .. import _C
from ..constants import DEVICE_NAME, DISTRIBUTED_BACKEND_NAME


def register() -> None:
    """Make ``spyreccl`` the backend of tensors on the card: ``init_process_group()`` alone finds it."""
    if dist.is_available() and DISTRIBUTED_BACKEND_NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(DISTRIBUTED_BACKEND_NAME, _create, extended_api=True, devices=[DEVICE_NAME])


def _create(options: Any, _: object) -> Any:
    from .. import __version__
    from . import lone

    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    timeout = options.timeout if isinstance(options.timeout, timedelta) else timedelta(seconds=options.timeout)
    if lone.is_lone():
        return _C.create_lone_spyreccl(options.group_rank, timeout, ranks)
    _share_machine()

    def make_gloo() -> Any:  # for members on other hosts
        store = dist.PrefixStore("gloo", options.store)
        return dist.ProcessGroupGloo(store, options.group_rank, options.group_size, timeout)

    return _C.create_spyreccl(
        options.store, options.group_rank, options.group_size, timeout, ranks, make_gloo, __version__
    )


def _share_machine() -> None:
    """The processes of a program on one machine share its cores."""
    if os.environ.get("SPYRE_THREADS"):
        return
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(local) if local.isdecimal() else dist.get_world_size() if dist.is_initialized() else 1
    cores = len(os.sched_getaffinity(0))
    _C.limit_threads(max(1, cores // max(1, ranks)))
