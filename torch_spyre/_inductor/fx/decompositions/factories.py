"""Factory functions."""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import decomposition_table

from .registry import decomposes

aten = torch.ops.aten


@decomposes(aten.linspace.default)
def linspace(start: float, end: float, steps: int, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """ATen converts integer bounds to the dtype of the result first; PyTorch's decomposition does not."""
    if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        start, end = int(start), int(end)
    made: torch.Tensor = decomposition_table[aten.linspace.default](start, end, steps, dtype=dtype, **options)
    return made


@decomposes(
    *(aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor),
    *(aten.logspace.Tensor_Tensor, aten.logspace.Tensor_Scalar, aten.logspace.Scalar_Tensor),
)
def between_tensors(*args: Any, **options: Any) -> Any:
    """Not decomposed: PyTorch's decomposition computes in float64, which the card lacks."""
    return NotImplemented


@decomposes(aten.tril_indices.default, aten.triu_indices.default)
def triangle_indices(*args: Any, **options: Any) -> Any:
    """Not decomposed: PyTorch's decomposition takes square roots in float64, which the card lacks."""
    return NotImplemented
