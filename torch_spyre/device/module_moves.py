"""``nn.Module.to``: parameters keep their identity, and weights get the layout that compiled calls want."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .. import _C
from ..constants import DEVICE_NAME
from .layout_arguments import is_fake


def apply_keeping_parameters(original: Any) -> Any:
    """Module.to must keep its Parameter objects: optimizers hold them, and tied weights are one object.

    PyTorch moves a parameter in place with ``.data =`` between devices that it knows, and PrivateUse1 is not one of
    them: it makes new parameters instead. This puts the data of the new parameters into the old ones.
    """

    @functools.wraps(original)
    def apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        if not isinstance(fn, _WithLayout):
            fn = _WithLayout(fn, self)
        if recurse:
            for module in self.children():
                module._apply(fn)
        before = dict(self._parameters)
        original(self, fn, recurse=False)
        for name, old in before.items():
            new = self._parameters[name]
            if old is None or new is None or new is old or DEVICE_NAME not in (old.device.type, new.device.type):
                continue
            if is_fake(old) or is_fake(new):
                continue
            _C.set_data(old, new.data)
            old.grad = new.grad
            self._parameters[name] = old
        return self

    return apply


class _WithLayout:
    """The function that Module._apply calls with each tensor. Weights that it moves to the card get the layout that
    compiled calls want."""

    def __init__(self, fn: Callable[[torch.Tensor], torch.Tensor], root: torch.nn.Module) -> None:
        self.fn, self.root = fn, root
        self.owners: dict[int, list[tuple[torch.nn.Module, str]]] | None = None

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        has_shape = not isinstance(tensor, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer))
        if not has_shape or tensor.device.type != "cpu" or is_fake(tensor):
            return self.fn(tensor)
        from ..model_utils import way_to_lie

        shape, owners = tuple(tensor.shape), self._owners_of(tensor)
        make = way_to_lie(shape, owners) if owners else None
        if make is None:
            return self.fn(tensor)
        moved = self.fn(torch.zeros([2] * len(shape), dtype=tensor.dtype))  # tells device, dtype and memory format
        in_order = moved.is_contiguous() and (len(shape) < 4 or tensor.is_contiguous())
        if moved.device.type != DEVICE_NAME or not in_order:
            return self.fn(tensor)
        value = tensor.detach().to(moved.dtype).contiguous()
        return value.to(moved.device, device_layout=make(shape, moved.dtype))  # type: ignore[call-overload]

    def _owners_of(self, tensor: torch.Tensor) -> list[tuple[torch.nn.Module, str]]:
        if self.owners is None:
            self.owners = {}
            for module in self.root.modules():
                for name, each in (*module._parameters.items(), *module._buffers.items()):
                    if each is not None:
                        self.owners.setdefault(id(each), []).append((module, name))
        if isinstance(tensor, torch.nn.Parameter):
            return self.owners.get(id(tensor), [])
        return self.owners.pop(id(tensor), [])  # a buffer is replaced, and another tensor may get its id
