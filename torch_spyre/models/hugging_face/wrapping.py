"""Wrapping methods of transformers, and sending what they are given between host and card."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from ...constants import DEVICE_NAME


def wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Replaces a method or function by what ``wrapper`` makes of it."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(wrapper(original)))


def subclasses(cls: type[Any]) -> set[type[Any]]:
    """All that are defined already, directly or not."""
    return {found for one in cls.__subclasses__() for found in (one, *subclasses(one))}


def on_card(model: Any) -> bool:
    return model.device.type == DEVICE_NAME


def moved(value: Any, device: Any) -> Any:
    """Tensors in an argument of a model, or in what ``generate`` returns, on another device. Caches stay, and so does
    float64, which only the host has."""
    if isinstance(value, torch.Tensor):
        return value if value.dtype == torch.float64 else value.to(device)
    if type(value) is dict:
        return {name: moved(one, device) for name, one in value.items()}
    if isinstance(value, OrderedDict):  # the package's outputs
        found = copy.copy(value)
        for name, one in value.items():
            found[name] = moved(one, device)
        return found
    if type(value) in (tuple, list):
        return type(value)(moved(one, device) for one in value)
    return value
