"""What Hugging Face models need to be loaded onto cards, one or several: ``device_map="spyre"``, ``tp_plan="auto"``."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from ...constants import DEVICE_NAME, DISTRIBUTED_BACKEND_NAME


def name_backend(utils: ModuleType) -> None:
    """The package knows the backends of the devices it knows, and raises for others."""
    utils.DISTRIBUTED_BACKEND_MAP.setdefault(DEVICE_NAME, DISTRIBUTED_BACKEND_NAME)


def load_without_accelerate(modeling: ModuleType) -> None:
    """The package wants ``accelerate`` for any place of a model, which it uses only to divide one among devices."""
    original = modeling.check_and_set_device_map

    @functools.wraps(original)
    def check_and_set_device_map(device_map: Any) -> Any:
        try:
            device = torch.device(device_map) if isinstance(device_map, (str, torch.device)) else None
        except RuntimeError:  # "auto" and others
            device = None
        if device is None or device.type != DEVICE_NAME:
            return original(device_map)
        return {"": device}

    modeling.check_and_set_device_map = check_and_set_device_map  # type: ignore[attr-defined]
