"""Tensors that share memory on the host, on the card."""

from __future__ import annotations

import torch


class CardStorages:
    """Moves tensors one by one: those that share a storage share one there, with the same strides and offsets."""

    def __init__(self) -> None:
        self._moved: dict[torch.UntypedStorage, torch.Tensor] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage not in self._moved:
            base = x if x._base is None else x._base
            covers = base.is_contiguous() and base.nbytes == storage.nbytes()
            whole = base.detach() if covers else torch.empty(0, dtype=x.dtype).set_(storage)
            self._moved[storage] = whole.to("spyre")
        card = self._moved[storage]
        return card if x._base is None else card.as_strided(x.size(), x.stride(), x.storage_offset())
