"""Random numbers of DTensors.

PyTorch gives shards different numbers, and replicas the same ones, by offsets into one stream of numbers. The device's
generators, which draw the numbers of the CPU, have no offsets: each shard draws with a seed of its own,
made of a number that all ranks draw and of the shard's number.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch._guards import detect_fake_mode

from ..constants import DEVICE_NAME
from ..device.random import default_generator


def seed_shards(module: ModuleType) -> None:
    """Change ``torch.distributed.tensor._random``, once it is imported."""
    tracker = module.OffsetBasedRNGTracker
    original = tracker._distribute_region

    @functools.wraps(original)
    def distribute_region(self: Any, spec: Any, generator: torch.Generator | None = None) -> Any:
        if self._device.type != DEVICE_NAME or not self.distribute_region_enabled:
            return original(self, spec, generator)
        coordinate = [spec.mesh._sym_get_coordinate(dim) for dim in range(spec.mesh.ndim)]
        shard = module._calc_shard_linear_idx(*module._calc_shard_info(coordinate, spec))
        if detect_fake_mode() is None:
            return _region(default_generator(self._device), generator, shard)
        if spec.num_shards == 1:
            return contextlib.nullcontext()
        raise NotImplementedError(
            "compiled programs do not draw random numbers for shards of a DTensor, which need seeds of their own: take "
            "the op out of torch.compile, or redistribute to Replicate() before it"
        )

    tracker._distribute_region = distribute_region


@contextlib.contextmanager
def _region(own: torch.Generator, given: torch.Generator | None, shard: int) -> Iterator[None]:
    """Inside, the card's generator draws for a shard; afterwards the generators of all ranks are in one state again."""
    common = _draw(own if given is None else given)
    state = own.get_state()
    own.manual_seed(_seed(common, shard))
    try:
        yield
    finally:
        own.set_state(state)


def _draw(generator: torch.Generator) -> list[int]:
    """The same on all ranks, whose generators are in the same state; moves the generator on."""
    return torch.randint(2**31 - 1, (2,), generator=generator, dtype=torch.int32, device=generator.device).tolist()


def _seed(common: list[int], shard: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{common} {shard}".encode()).digest()[:8], "little") >> 1
