"""Tensors that are made of numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import decomposition_table

from .registry import decomposes

aten = torch.ops.aten


@decomposes(aten.linspace.default)
def linspace(start: float, end: float, steps: int, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """ATen takes the bounds in the dtype of the result before it divides the way between them, unlike PyTorch's own."""
    if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        start, end = int(start), int(end)
    made: torch.Tensor = decomposition_table[aten.linspace.default](start, end, steps, dtype=dtype, **options)
    return made


@decomposes(
    *(aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor),
    *(aten.logspace.Tensor_Tensor, aten.logspace.Tensor_Scalar, aten.logspace.Scalar_Tensor),
)
def between_tensors(*args: Any, **options: Any) -> Any:
    """PyTorch's own computes in float64, which the card has not."""
    return NotImplemented


@decomposes(aten.tril_indices.default, aten.triu_indices.default)
def of_a_triangle(*args: Any, **options: Any) -> Any:
    """PyTorch's own takes roots in float64, which the card has not."""
    return NotImplemented
