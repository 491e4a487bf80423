"""``device_layout=`` of ``Tensor.to`` and ``torch.empty``, and ``Tensor.device_tensor_layout()``."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .. import _C
from ..constants import DEVICE_NAME


def device_tensor_layout(tensor: torch.Tensor) -> _C.SpyreTensorLayout | None:
    """The layout of the tensor's storage on the card; None for tensors elsewhere."""
    return _C.get_spyre_tensor_layout(tensor) if tensor.device.type == DEVICE_NAME and not is_fake(tensor) else None


def to_with_layout(original: Any) -> Any:
    @functools.wraps(original)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        layout = kwargs.pop("device_layout", None)
        if layout is None:
            return original(self, *args, **kwargs)
        copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if memory_format is not None:
            raise TypeError("Tensor.to(device_layout=...) does not take memory_format")
        device = device or (self.device if self.device.type == DEVICE_NAME else torch.device(DEVICE_NAME))
        dtype = dtype or self.dtype
        _check_device(device)
        if is_fake(self):
            return original(self, device, dtype, non_blocking, True)
        there = self.device.type == DEVICE_NAME and device.index in (None, self.device.index) and self.dtype == dtype
        if there and not copy and self.is_contiguous() and _C.get_spyre_tensor_layout(self) == layout:
            return self
        return _C.empty_with_layout(list(self.size()), dtype, layout, device).copy_(self, non_blocking=non_blocking)

    return to


def empty_with_layout(original: Any) -> Any:
    @functools.wraps(original)
    def empty(*size: Any, **kwargs: Any) -> torch.Tensor:
        layout = kwargs.pop("device_layout", None)
        if layout is None:
            return original(*size, **kwargs)
        device = torch.device(kwargs.pop("device", None) or DEVICE_NAME)
        dtype = kwargs.pop("dtype", None) or torch.get_default_dtype()
        requires_grad = kwargs.pop("requires_grad", False)
        shape = kwargs.pop("size", size)
        if kwargs:
            raise TypeError(f"torch.empty(device_layout=...) does not take {', '.join(kwargs)}")
        _check_device(device)
        if len(shape) == 1 and not isinstance(shape[0], int):
            shape = shape[0]
        if is_fake():
            return original(shape, dtype=dtype, device=device, requires_grad=requires_grad)
        return _C.empty_with_layout(list(shape), dtype, layout, device).requires_grad_(requires_grad)

    return empty


def is_fake(tensor: torch.Tensor | None = None) -> bool:
    """Whether the tensor, or one that is made now, is fake: fake tensors have no memory and no layout."""
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return True
    return tensor is not None and type(tensor).__name__ == "FakeTensor"


def _check_device(device: torch.device) -> None:
    if device.type != DEVICE_NAME:
        raise ValueError(f"device_layout describes tensors on {DEVICE_NAME}, not on {device}")
