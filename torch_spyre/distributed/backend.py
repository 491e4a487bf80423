"""The backend's registration, and what a process group takes of the machine."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _C
from ..constants import DEVICE_NAME, DISTRIBUTED_BACKEND_NAME


def register() -> None:
    """Make ``spyreccl`` the backend of tensors on the card: ``init_process_group()`` alone finds it."""
    if dist.is_available() and DISTRIBUTED_BACKEND_NAME not in dist.Backend.backend_list:
        _C.define_spyreccl()
        dist.Backend.register_backend(DISTRIBUTED_BACKEND_NAME, _create, extended_api=True, devices=[DEVICE_NAME])
        c10d = dist.distributed_c10d
        c10d._new_process_group_helper = _with_default_backend(c10d._new_process_group_helper)


def _with_default_backend(original: Callable[..., Any]) -> Callable[..., Any]:
    """Groups made without a backend's name, or with several, ask PyTorch's own for what no tensor decides."""

    @functools.wraps(original)
    def new_group(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        group = made[0]
        if isinstance(group, dist.ProcessGroup) and torch.device(DEVICE_NAME) in group._device_types:
            group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        return made

    return new_group


def _create(options: Any, _: object) -> Any:
    from .. import __version__
    from . import lone

    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    timeout = options.timeout if isinstance(options.timeout, timedelta) else timedelta(seconds=options.timeout)
    if lone.is_lone():
        return _C.create_lone_spyreccl(options.store, options.group_rank, options.group_size, timeout, ranks)
    _share_machine()
    return _C.create_spyreccl(
        options.store, options.group_rank, options.group_size, timeout, ranks, _make_gloo, __version__
    )


def _make_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """For groups with members on other hosts."""
    return dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout)


def _share_machine() -> None:
    """The processes of a program on one machine share its cores."""
    if os.environ.get("SPYRE_THREADS"):
        return
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(local) if local.isdecimal() else dist.get_world_size() if dist.is_initialized() else 1
    cores = len(os.sched_getaffinity(0))
    _C.limit_threads(max(1, cores // max(1, ranks)))
