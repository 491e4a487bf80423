"""Gradients of pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from .convolution import spread
from .registry import decomposes
from .resampling import Table, scattered

aten = torch.ops.aten


@decomposes(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(gradient: torch.Tensor, x: torch.Tensor, *window: Any) -> torch.Tensor:
    return _of_average(aten.avg_pool2d.default, 2, gradient, x, *window)


@decomposes(aten.avg_pool3d_backward.default)
def avg_pool3d_backward(gradient: torch.Tensor, x: torch.Tensor, *window: Any) -> torch.Tensor:
    return _of_average(aten.avg_pool3d.default, 3, gradient, x, *window)


def _of_average(
    pool: Callable[..., torch.Tensor],
    rank: int,
    gradient: torch.Tensor,
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> torch.Tensor:
    """The gradient of an element is a sum over the windows that contain it: a pool of the spread gradients."""
    kernel, padding = ([*v] * rank if len(v) == 1 else [*v] for v in (kernel, padding))
    stride = kernel if not stride else [*stride] * rank if len(stride) == 1 else stride
    size, dtype = x.shape[-rank:], gradient.dtype
    if divisor is None and not ceil_mode and (count_include_pad or not any(padding)):
        divisor = prod(kernel)
    gradient = gradient.to(torch.float32)
    if divisor is not None:
        gradient = gradient / divisor
    else:
        around = [p for n in reversed(padding) for p in (n, n)] if count_include_pad else []
        counted = torch.nn.functional.pad(gradient.new_ones(1, *size), around, value=1.0)
        gradient = gradient / pool(counted, kernel, stride, [0] * rank if around else padding, ceil_mode, True, 1)
    pads: list[int] = []
    for dim, n, k, step, pad in zip(range(-rank, 0), size, kernel, stride, padding, strict=True):
        gradient = spread(gradient, dim + gradient.dim(), step)
        pads = [k - 1 - pad, n + pad - gradient.shape[dim], *pads]
    gradient = torch.nn.functional.pad(gradient, pads)
    return pool(gradient, kernel, [1] * rank, [0] * rank, False, True, 1).to(dtype)


@decomposes(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_backward(gradient: torch.Tensor, x: torch.Tensor, *window: torch.Tensor) -> torch.Tensor:
    return _scattered_to(gradient, x, window[-1], 2)


@decomposes(aten.max_pool3d_with_indices_backward.default)
def max_pool3d_backward(gradient: torch.Tensor, x: torch.Tensor, *window: torch.Tensor) -> torch.Tensor:
    return _scattered_to(gradient, x, window[-1], 3)


@decomposes(aten.adaptive_max_pool2d_backward.default)
def adaptive_max_pool2d_backward(gradient: torch.Tensor, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return _scattered_to(gradient, x, indices, 2)


@decomposes(aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool3d_backward(gradient: torch.Tensor, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return _scattered_to(gradient, x, indices, 3)


def _scattered_to(gradient: torch.Tensor, x: torch.Tensor, indices: torch.Tensor, rank: int) -> torch.Tensor:
    """Adds each gradient to the element that was the maximum."""
    flat = gradient.new_zeros(*x.shape[:-rank], prod(x.shape[-rank:]))
    return flat.scatter_add(-1, indices.flatten(-rank), gradient.flatten(-rank)).view(x.shape)


@decomposes(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return _of_adaptive_average(gradient, x, 2)


@decomposes(aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool3d_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return _of_adaptive_average(gradient, x, 3)


def _of_adaptive_average(gradient: torch.Tensor, x: torch.Tensor, rank: int) -> torch.Tensor:
    dtype, gradient = gradient.dtype, gradient.to(torch.float32)
    for dim in range(x.dim() - rank, x.dim()):
        n, out = x.shape[dim], gradient.shape[dim]
        if n % out == 0:
            gradient = (gradient / (n // out)).repeat_interleave(n // out, dim)
        else:
            gradient = scattered(gradient, dim, n, _adaptive(n, out, gradient.device))
    return gradient.to(dtype)


def _adaptive(n: int, out: int, device: torch.device) -> Table:
    """The windows of an adaptive pool along a dimension: the elements of each, and their weights in the average."""
    number = torch.arange(out, device=device)
    start, end = number * n // out, ((number + 1) * n + out - 1) // out
    longest = max(-(-(i + 1) * n // out) - i * n // out for i in range(out))
    indices = start + torch.arange(longest, device=device)[:, None]
    weights = torch.where(indices < end, 1.0 / (end - start), 0.0)
    return indices.clamp(max=n - 1), weights
