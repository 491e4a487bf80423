"""Gradients of padding: an element sums what its copies got."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .registry import decomposes

aten = torch.ops.aten

Places = Callable[[torch.Tensor, int], torch.Tensor]  # of the copy at each place, for a dimension of n elements


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


def _summed(gradient: torch.Tensor, x: torch.Tensor, padding: Sequence[int], places: Places) -> torch.Tensor:
    dtype, gradient = gradient.dtype, gradient.to(torch.float32)
    for i, before in enumerate(padding[::2]):
        dim = x.dim() - 1 - i
        at = places(torch.arange(gradient.shape[dim], device=x.device) - before, x.shape[dim])
        size = [*gradient.shape[:dim], x.shape[dim], *gradient.shape[dim + 1 :]]
        gradient = gradient.new_zeros(size).index_add(dim, at, gradient)
    return gradient.to(dtype)
