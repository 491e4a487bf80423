"""Position embeddings that models compute in float64, which the card has not: the host computes them once."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from ...constants import DEVICE_NAME
from .wrapping import subclasses, wrap

_IN_FLOAT64 = "build_2d_sinusoidal_position_embedding"  # several models have a copy of it in their module


def fix(modeling_utils: ModuleType) -> None:
    """The modules are found by the models that they define, now or later."""
    base = modeling_utils.PreTrainedModel
    original = base.__init_subclass__.__func__

    def fix_module_of(cls: type[Any]) -> None:
        module = sys.modules[cls.__module__]
        built = vars(module).get(_IN_FLOAT64)
        if built is not None and not hasattr(built, "__wrapped__"):
            wrap(module, _IN_FLOAT64, _compute_on_host)

    def define(cls: type[Any], /, **kwargs: Any) -> None:
        original(cls, **kwargs)
        fix_module_of(cls)

    base.__init_subclass__ = classmethod(define)
    for cls in subclasses(base):
        fix_module_of(cls)


def _compute_on_host(original: Any) -> Any:
    def compute(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != DEVICE_NAME:
            return original(*args, device=device, **kwargs)
        return original(*args, device=torch.device("cpu"), **kwargs).to(device)

    return compute
