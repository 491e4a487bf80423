"""The numbers that the card holds, as the host can compute with them."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from ..constants import DEVICE_NAME

HALVES = (torch.float16, torch.bfloat16)


def on_card(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == DEVICE_NAME


def is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def held(tensor: Tensor) -> Tensor:
    """What a tensor holds, exactly: the halves have more range and more bits on the card than they take to the host."""
    tensor = tensor.detach()
    host = tensor.cpu()
    if tensor.dtype not in HALVES or not on_card(tensor) or not tensor.numel():
        return host.clone() if host is tensor else host
    with contextlib.suppress(RuntimeError):
        wide = tensor.float().cpu()
        if _agrees(wide, host):  # a wrong cast must not hide what the tensor holds
            return wide
    return host.float()


def _agrees(wide: Tensor, host: Tensor) -> bool:
    narrow = wide.to(host.dtype)
    return bool(((narrow == host) | (narrow.isnan() & host.isnan())).all())


def widened(value: Any) -> Any:
    """A value of a call in float64 on the host, numbers and all else as they are."""
    if isinstance(value, Tensor):
        host = held(value).contiguous()
        return host.double() if is_real(host) else host
    return on_host(value, torch.float64)


def as_computed(value: Any) -> Any:
    """A number next to tensors is one of fp32, which the card computes in."""
    return float(torch.tensor(value, dtype=torch.float32)) if isinstance(value, float) else widened(value)


def on_host(value: Any, real: torch.dtype | None = None) -> Any:
    """An argument that names a device names the host; one that names a real dtype names ``real``."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if real is not None and isinstance(value, torch.dtype) and value.is_floating_point:
        return real
    return value
