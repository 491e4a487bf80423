"""Where elements are that are not zero, for a number of them that is known."""

from __future__ import annotations

import torch

from .registry import decomposes

aten = torch.ops.aten


@decomposes(aten.nonzero_static.default)
def nonzero_static(x: torch.Tensor, *, size: int, fill_value: int = -1) -> torch.Tensor:
    """Each of these elements sends its position to its rank among them; what has no place goes behind the end."""
    if size < 0:
        return NotImplemented  # PyTorch says why
    if 0 in (x.dim(), x.numel(), size):
        return x.new_full((x.dim(), size), fill_value, dtype=torch.int64).t()
    found = (x != 0).flatten()
    rank = found.to(torch.int64).cumsum(0) - 1
    place = torch.where(found & (rank < size), rank, size)
    positions = x.new_full((size + 1,), -1, dtype=torch.int64)
    positions = positions.scatter(0, place, torch.arange(x.numel(), device=x.device))[:size]
    indices, rest = [], positions
    for length in reversed(x.shape):
        indices.append(torch.where(positions < 0, fill_value, rest % length))
        rest = torch.div(rest, length, rounding_mode="floor")
    return torch.stack(indices[::-1]).t()
