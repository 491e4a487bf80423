"""The device's random generators. They draw on the host, so a seed gives the same numbers as on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._compile import _disable_dynamo

from .. import _C

__all__ = [
    "default_generator",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def default_generator(device: Any = None) -> torch.Generator:
    """The generator of a card."""
    from . import _index_of

    return _C.default_generator(_index_of(device))


def _generators() -> list[torch.Generator]:
    return [default_generator(index) for index in range(_C.device_count())]


def manual_seed(seed: int) -> None:
    """Seed the current card's generator."""
    default_generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every card's generator; ``torch.manual_seed`` calls this, so without cards it does nothing."""
    for generator in _generators() if torch.spyre.is_available() else ():  # type: ignore[attr-defined]
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seed the current card's generator with a random number."""
    return default_generator().seed()


def seed_all() -> None:
    """Seed every card's generator with one random number."""
    manual_seed_all(seed())


def initial_seed() -> int:
    """The seed of the current card's generator."""
    return default_generator().initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """State of a card's generator, as a CPU byte tensor."""
    return default_generator(device).get_state()


@_disable_dynamo  # a generator's state is the host's: a graph breaks here instead of failing
def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Restore a state that :func:`get_rng_state` gave."""
    default_generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all cards' generators."""
    return [generator.get_state() for generator in _generators()]


@_disable_dynamo
def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restore the states of all cards' generators."""
    for generator, state in zip(_generators(), new_states, strict=True):
        generator.set_state(state)
