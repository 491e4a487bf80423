"""The same program in float32 on the host, beside the card: how far errors have added up.

Views of the card are strides over a storage. So every storage of the card gets one of float32 numbers here, and a
tensor of the card has the same sizes and strides in it; views and changes in place need nothing more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .values import held, is_real, on_card, on_host

_SWEEP = 256  # storages between two searches for those that are gone


class Reference:
    def __init__(self) -> None:
        self.storages: dict[int, tuple[StorageWeakRef, Tensor]] = {}
        self.since_sweep = 0

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor's counterpart; one that was not seen before starts with what the card holds."""
        if not on_card(tensor):
            return _float32(tensor)
        flat = self._storage(tensor)
        return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def argument(self, value: Any) -> Any:
        """An argument of a call as the host takes it."""
        return self.of(value.detach()) if isinstance(value, Tensor) else on_host(value, torch.float32)

    def put(self, tensor: Tensor, value: Tensor) -> None:
        """``tensor`` was computed, and is ``value`` here."""
        if on_card(tensor) and tensor.numel() and tuple(tensor.shape) == tuple(value.shape):
            self._storage(tensor, of_card=False)
            self.of(tensor).copy_(value)

    def adopt(self, tensor: Tensor) -> None:
        """What the card holds is right, for example random numbers."""
        if on_card(tensor):
            self.put(tensor, _float32(held(tensor)))

    def _storage(self, tensor: Tensor, of_card: bool = True) -> Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self.storages.get(key)
        if known is not None and not known[0].expired():
            return known[1]
        self._sweep()
        flat = _float32(_contents(tensor) if of_card and tensor.numel() else _zeros(tensor))
        if of_card and tensor.numel() and is_real(tensor):  # the view has bits that the storage's bytes have not
            once = _each_once(tensor)
            with contextlib.suppress(RuntimeError):  # windows that overlap are left as they are
                flat.as_strided(once.size(), once.stride(), once.storage_offset()).copy_(held(once))
        self.storages[key] = StorageWeakRef(storage), flat
        return flat

    def _sweep(self) -> None:
        self.since_sweep += 1
        if self.since_sweep >= _SWEEP:
            self.since_sweep = 0
            self.storages = {key: known for key, known in self.storages.items() if not known[0].expired()}


def run(function: Callable[[], Any]) -> Any:
    """What the host gives, or None where it cannot compute it."""
    try:
        return function()
    except Exception:  # whatever an op of any library raises: the reference then goes on with the card's numbers
        return None


def _contents(tensor: Tensor) -> Tensor:
    """All that the tensor's storage holds, as one dimension on the host."""
    storage = tensor.untyped_storage().cpu()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, [count], [1])


def _each_once(tensor: Tensor) -> Tensor:
    """The tensor without what it repeats along its dimensions."""
    size = [n if step else 1 for n, step in zip(tensor.size(), tensor.stride(), strict=True)]
    return tensor.detach().as_strided(size, tensor.stride(), tensor.storage_offset())


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=tensor.dtype)


def _float32(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.float() if is_real(tensor) else tensor
