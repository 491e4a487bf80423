"""Gradients of padding: the gradient of an element is the sum of the gradients of its copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .registry import decomposes

aten = torch.ops.aten

Source = Callable[[torch.Tensor, int], torch.Tensor]  # (padded positions, n) -> which of n elements is copied there


@decomposes(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def replication_pad_backward(gradient: torch.Tensor, x: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
    return _summed(gradient, x, padding, lambda at, n: at.clamp(0, n - 1))


@decomposes(
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
)
def reflection_pad_backward(gradient: torch.Tensor, x: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
    return _summed(gradient, x, padding, lambda at, n: n - 1 - (n - 1 - at.abs()).abs())


def _summed(gradient: torch.Tensor, x: torch.Tensor, padding: Sequence[int], source: Source) -> torch.Tensor:
    dtype, gradient = gradient.dtype, gradient.to(torch.float32)
    for i, before in enumerate(padding[::2]):
        dim = x.dim() - 1 - i
        indices = source(torch.arange(gradient.shape[dim], device=x.device) - before, x.shape[dim])
        size = [*gradient.shape[:dim], x.shape[dim], *gradient.shape[dim + 1 :]]
        gradient = gradient.new_zeros(size).index_add(dim, indices, gradient)
    return gradient.to(dtype)
