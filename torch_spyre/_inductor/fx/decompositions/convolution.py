"""Transposed convolutions and gradients of convolutions, written as convolutions and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from .registry import decomposes

aten = torch.ops.aten


def spread(x: torch.Tensor, dim: int, step: int) -> torch.Tensor:
    """x with its elements ``step`` apart along ``dim``, and zeros in between."""
    if step == 1 or x.shape[dim] == 0:
        return x
    size = list(x.shape)
    size[dim] = (size[dim] - 1) * step + 1
    return torch.slice_scatter(x.new_zeros(size), x, dim, 0, None, step)


@decomposes(aten.convolution.default)
def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> torch.Tensor:
    if not transposed:
        return NotImplemented
    spatial = x.dim() - 2
    stride, padding, dilation, more = (_each(v, spatial) for v in (stride, padding, dilation, output_padding))
    size = [
        (n - 1) * step - 2 * pad + space * (k - 1) + add + 1
        for n, k, step, pad, space, add in zip(
            x.shape[2:], weight.shape[2:], stride, padding, dilation, more, strict=True
        )
    ]
    return _transposed(x, weight, bias, size, stride, padding, dilation, groups)


@decomposes(aten.convolution_backward.default)
def convolution_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    spatial = range(2, x.dim())
    stride, padding, dilation = (_each(v, len(spatial)) for v in (stride, padding, dilation))
    window = stride, padding, dilation, groups
    of_x = of_weight = None
    if output_mask[0] and transposed:
        of_x = aten.convolution(gradient, weight, None, stride, padding, dilation, False, [0] * len(spatial), groups)
        for dim in spatial:
            of_x = of_x.narrow(dim, 0, x.shape[dim])
    elif output_mask[0]:
        of_x = _transposed(gradient, weight, None, x.shape[2:], *window)
    if output_mask[1]:
        windowed, factor = (gradient, x) if transposed else (x, gradient)
        of_weight = _of_weight(factor, windowed, weight.shape, *window)
    return of_x, of_weight, gradient.sum([0, *spatial]) if output_mask[2] else None


def _each(given: Sequence[int], count: int) -> list[int]:
    return list(given) * count if len(given) == 1 else list(given)


def _transposed(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """A convolution of the input, with its elements moved ``stride`` apart, with the flipped filters."""
    spatial = range(2, x.dim())
    pads: list[int] = []
    for dim, n, step, pad, space in zip(spatial, size, stride, padding, dilation, strict=True):
        x = spread(x, dim, step)
        reach = space * (weight.shape[dim] - 1)
        pads = [reach - pad, n + pad - x.shape[dim], *pads]
    flipped = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(*spatial)
    zeros, ones = [0] * len(spatial), [1] * len(spatial)
    x = torch.nn.functional.pad(x, pads)
    return aten.convolution(x, flipped, bias, ones, zeros, dilation, False, zeros, groups)


def _of_weight(
    gradient: torch.Tensor,
    x: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """The matrix product of the windows that the filters were applied to and the gradient."""
    x = torch.nn.functional.pad(x, [p for n in reversed(padding) for p in (n, n)]).contiguous()
    strides, channels, out = x.stride(), size[1], gradient.shape[2:]
    windows = x.as_strided(
        (groups, channels, *size[2:], x.shape[0], *out),
        (
            channels * strides[1],
            strides[1],
            *(s * n for s, n in zip(strides[2:], dilation, strict=True)),
            strides[0],
            *(s * n for s, n in zip(strides[2:], stride, strict=True)),
        ),
    )
    columns = windows.reshape(groups, channels * prod(size[2:]), -1)
    rows = gradient.transpose(0, 1).reshape(groups, size[0] // groups, -1)
    return (columns @ rows.mT).mT.reshape(size)
