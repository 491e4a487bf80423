"""Choices that a model makes on its way: experts of a token, keys that are looked at, boxes that are kept.

Where two are tied within the error of a number format, either is right, and results of one are not those of the other.
So the host is given the card's choices, as far as they are ties by its own numbers; others it makes itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_TOPK = (torch.topk, Tensor.topk)


class Noted(TorchFunctionMode):
    """Keeps the indices that ``topk`` gives, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.indices: list[Tensor] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if function in _TOPK:
            self.indices.append(found[1].cpu())
        return found


class Replayed(TorchFunctionMode):
    """Gives ``topk`` the noted indices where their values are the largest, but for ``allowed`` of the values' rms."""

    def __init__(self, noted: Noted, allowed: float, batch: int) -> None:
        super().__init__()
        self.noted, self.allowed, self.batch = iter(noted.indices), allowed, batch

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        if function not in _TOPK:
            return found
        values, indices = found
        other = _of_same_tokens(next(self.noted, None), indices, self.batch)
        dim = kwargs.get("dim", args[2] if len(args) > 2 else -1)
        if other is None or dim % values.dim() != values.dim() - 1:
            return found
        given = args[0].double()
        theirs = given.gather(-1, other)
        finite = given.isfinite()
        rms = torch.where(finite, given, 0).square().sum(-1) / finite.sum(-1).clamp(min=1)
        missed = (values.double().sort(-1).values - theirs.sort(-1).values).abs().nan_to_num(nan=0.0).amax(-1)
        tied = (missed <= self.allowed * rms.sqrt())[..., None]
        return type(found)((torch.where(tied, theirs.to(values.dtype), values), torch.where(tied, other, indices)))


def _of_same_tokens(other: Tensor | None, mine: Tensor, batch: int) -> Tensor | None:
    """Prompts may have been padded on their left."""
    if other is None or other.shape == mine.shape:
        return other
    if other.shape[-1] != mine.shape[-1] or other.numel() % (batch * mine.shape[-1]):
        return None
    rows = other.reshape(batch, -1, mine.shape[-1])[:, -(mine.numel() // batch // mine.shape[-1]) :]
    return rows.reshape(mine.shape) if rows.numel() == mine.numel() else None
