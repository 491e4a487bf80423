"""``torch.spyre``: the device as PyTorch users reach it."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C
from .._C import DataFormats, SpyreTensorLayout, get_device_dtype
from ..constants import DEVICE_NAME
from ..ops.fallbacks import FallbackWarning, fallback, fallback_counts, reset_fallback_counts
from . import autograd_threads as autograd_threads
from . import memory, random
from .memory import (
    device_memory_used,
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from .properties import (
    SpyreDeviceProperties,
    can_device_access_peer,
    get_device_capability,
    get_device_name,
    get_device_properties,
    is_bf16_supported,
    is_tf32_supported,
)
from .random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import Event, Stream, current_stream, default_stream, set_stream, stream, synchronize
from .telemetry import power_draw, temperature, utilization

__all__ = [
    "DataFormats",
    "Event",
    "FallbackWarning",
    "SpyreDeviceProperties",
    "SpyreTensorLayout",
    "Stream",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "empty_cache",
    "fallback",
    "fallback_counts",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_device_dtype",
    "get_device_name",
    "get_device_properties",
    "get_downcast_warning",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "power_draw",
    "random",
    "reset_accumulated_memory_stats",
    "reset_fallback_counts",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_downcast_warning",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "temperature",
    "utilization",
]


def is_available() -> bool:
    """Whether this process sees a card. Starts nothing."""
    try:
        return device_count() > 0
    except RuntimeError:
        return False


def device_count() -> int:
    """Cards that this process sees (``AIU_WORLD_SIZE``, ``SPYRE_DEVICES``). Starts nothing."""
    return _C.device_count()


def is_initialized() -> bool:
    """Whether the runtime has started; the first tensor starts it."""
    return _C.runtime_started() and not _is_in_bad_fork()


def init() -> None:
    """Start the runtime now."""
    _C.start_runtime()


def _is_in_bad_fork() -> bool:
    return _C.in_bad_fork()


def _lazy_init() -> None:
    _C.start_runtime()


def current_device() -> int:
    """Index of this thread's card."""
    return _C.current_device()


def _index_of(device: torch.device | str | int | None) -> int:
    """The index of a device argument; None stands for the current card. Raises for a card that does not exist."""
    if device is None:
        return current_device()
    if isinstance(device, int):
        index = device
    else:
        device = torch.device(device)
        if device.type != DEVICE_NAME:
            raise ValueError(f"expected a {DEVICE_NAME} device, got {device}")
        index = current_device() if device.index is None else device.index
    if not 0 <= index < device_count():
        raise RuntimeError(
            f"invalid device index {index}: this process sees {device_count()} {DEVICE_NAME} card(s); "
            "AIU_WORLD_SIZE and SPYRE_DEVICES set which"
        )
    return index


def set_device(device: torch.device | str | int) -> None:
    """Make a card this thread's current one. Raises for a card that does not exist."""
    _C.set_device(_index_of(device))


class device:  # noqa: N801 - the name that torch.cuda and torch.load expect
    """Context manager: the current card inside."""

    def __init__(self, device: torch.device | str | int | None) -> None:
        self.idx = _index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> device:
        self.prev_idx = current_device()
        _C.set_device(self.idx)
        return self

    def __exit__(self, *_: Any) -> None:
        _C.set_device(self.prev_idx)


class device_of(device):  # noqa: N801
    """Context manager: the card of a tensor inside; nothing for tensors elsewhere."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == DEVICE_NAME else None)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that autocast may choose."""
    return [torch.float16, torch.bfloat16]


def get_arch_list() -> list[str]:
    """Kinds of cards that kernels were compiled for ahead of time: none, they are compiled for the card at hand."""
    return []


def is_current_stream_capturing() -> bool:
    """Whether the current stream records a graph: a card has no such graphs."""
    return False


def get_downcast_warning() -> bool:
    """Whether int64 data going to the card warns (``TORCH_SPYRE_DOWNCAST_WARN``)."""
    return _C.downcast_warning()


def set_downcast_warning(on: bool) -> None:
    """Turn the int64 warning on or off."""
    _C.set_downcast_warning(on)


# Names under which the public project has them.
_spyre_reset_accumulated_stats = reset_accumulated_memory_stats
_spyre_reset_peak_stats = reset_peak_memory_stats


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # torch.utils.checkpoint saves the generators' states of devices that have started
        return is_initialized()
    if name == "default_generators":
        return tuple(random.default_generator(index) for index in range(device_count()))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
