"""What the device adds to PyTorch's own classes and functions, all in one place."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from .. import _C
from ..constants import DEVICE_NAME
from . import random


def install() -> None:
    """Add them; called once, by autoload."""
    torch.Tensor.device_tensor_layout = device_tensor_layout
    torch.Tensor.to = _to_with_layout(torch.Tensor.to)
    torch.empty = _empty_with_layout(torch.empty)
    torch._tensor_str._tensor_str = _print_host_copy(torch._tensor_str._tensor_str)
    for name in ("manual_seed", "manual_seed_all"):
        if not hasattr(torch.accelerator, name):
            setattr(torch.accelerator, name, getattr(random, name))
    _after_import("safetensors.torch", _load_safetensors_to_card)


def device_tensor_layout(tensor: torch.Tensor) -> _C.SpyreTensorLayout | None:
    """How the tensor's storage lies on the card; None for tensors elsewhere."""
    return _C.get_spyre_tensor_layout(tensor) if tensor.device.type == DEVICE_NAME else None


def _to_with_layout(original: Any) -> Any:
    @functools.wraps(original)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if "device_layout" not in kwargs:
            return original(self, *args, **kwargs)
        layout = kwargs.pop("device_layout")
        given = [*args, kwargs.pop("device", None), kwargs.pop("dtype", None)]
        device = next((torch.device(a) for a in given if isinstance(a, (str, torch.device))), torch.device(DEVICE_NAME))
        dtype = next((a for a in given if isinstance(a, torch.dtype)), self.dtype)
        non_blocking = kwargs.pop("non_blocking", False)
        if kwargs:
            raise TypeError(f"Tensor.to(device_layout=...) does not take {', '.join(kwargs)}")
        _check_device(device)
        return _C.empty_with_layout(list(self.size()), dtype, layout, device).copy_(self, non_blocking=non_blocking)

    return to


def _check_device(device: torch.device) -> None:
    if device.type != DEVICE_NAME:
        raise ValueError(f"device_layout describes tensors on {DEVICE_NAME}, not on {device}")


def _empty_with_layout(original: Any) -> Any:
    @functools.wraps(original)
    def empty(*size: Any, **kwargs: Any) -> torch.Tensor:
        if "device_layout" not in kwargs:
            return original(*size, **kwargs)
        layout = kwargs.pop("device_layout")
        device = torch.device(kwargs.pop("device", DEVICE_NAME))
        dtype = kwargs.pop("dtype", None) or torch.get_default_dtype()
        requires_grad = kwargs.pop("requires_grad", False)
        shape = kwargs.pop("size", size)
        if kwargs:
            raise TypeError(f"torch.empty(device_layout=...) does not take {', '.join(kwargs)}")
        _check_device(device)
        if len(shape) == 1 and not isinstance(shape[0], int):
            shape = shape[0]
        return _C.empty_with_layout(list(shape), dtype, layout, device).requires_grad_(requires_grad)

    return empty


def _print_host_copy(original: Any) -> Any:
    """Printing computes widths and digits in float64, which the card lacks: it is given a host copy."""

    @functools.wraps(original)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        return original(self.cpu() if self.device.type == DEVICE_NAME else self, indent)

    return tensor_str


def _load_safetensors_to_card(safetensors_torch: ModuleType) -> None:
    """safetensors knows devices by name and not ours: read each mapped tensor and send it, one at a time."""
    original = safetensors_torch.load_file

    @functools.wraps(original)
    def load_file(filename: Any, device: Any = "cpu", **kwargs: Any) -> dict[str, torch.Tensor]:
        if not isinstance(device, (str, torch.device)) or torch.device(device).type != DEVICE_NAME:
            return original(filename, device=device, **kwargs)
        tensors = {}
        with safetensors_torch.safe_open(filename, framework="pt", device="cpu", **kwargs) as file:
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                tensors[name] = file.get_tensor(name).to(device)
        return tensors

    safetensors_torch.load_file = load_file


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs a function on a module right after its import, whenever that is."""

    def __init__(self, name: str, change: Any) -> None:
        self.name, self.change = name, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            run, change = spec.loader.exec_module, self.change

            def exec_module(module: ModuleType) -> None:
                run(module)
                change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _after_import(name: str, change: Any) -> None:
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, change))
