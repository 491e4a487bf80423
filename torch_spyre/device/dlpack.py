"""DLPack: memory of a card can be exported to this device alone."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.utils.dlpack

from ..constants import DEVICE_NAME
from .layout_arguments import device_tensor_layout


def with_card_device(original: Any) -> Any:
    @functools.wraps(original)
    def dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type != DEVICE_NAME:
            return original(self)
        return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index

    return dlpack_device


def with_card_check(original: Any) -> Any:
    """A capsule holds an address and strides, but no layout: only this device, which knows the owner of the memory, can
    read it."""

    @functools.wraps(original)
    def dlpack(self: torch.Tensor, *, dl_device: tuple[Any, int] | None = None, **kwargs: Any) -> Any:
        if self.device.type == DEVICE_NAME:
            if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
                raise BufferError(
                    f"a tensor on {self.device} is laid out in sticks, in the card's number formats: no other device "
                    "can read its memory. Export a host copy: tensor.cpu()"
                )
            if not self.requires_grad and not kwargs.get("copy"):
                seen = torch._C._from_dlpack(torch._C._to_dlpack(self))
                if self.numel() > 0 and device_tensor_layout(seen) != device_tensor_layout(self):
                    raise BufferError("this tensor reads shared memory by a layout of its own: export tensor.clone()")
        return original(self, dl_device=dl_device, **kwargs)

    return dlpack
