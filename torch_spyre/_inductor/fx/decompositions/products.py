"""Products of three tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .registry import decomposes

aten = torch.ops.aten


@decomposes(aten._trilinear.default)
def trilinear(
    first: torch.Tensor,
    second: torch.Tensor,
    third: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """The op of bilinear layers: a product of three factors, each without its ``expand`` dimensions, then a sum."""
    letters = "abcdefgh"[: first.dim() + len(expand1)]

    def without(dims: Sequence[int]) -> str:
        return "".join(letter for i, letter in enumerate(letters) if i not in dims)

    equation = ",".join(without(dims) for dims in (expand1, expand2, expand3)) + "->" + without(sumdim)
    wide = torch.float32 if first.is_floating_point() else first.dtype
    return torch.einsum(equation, first.to(wide), second.to(wide), third.to(wide)).to(first.dtype)
