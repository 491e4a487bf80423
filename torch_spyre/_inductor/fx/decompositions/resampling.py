"""Interpolation: along each dimension, a sum of a few elements with weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from .registry import decomposes

aten = torch.ops.aten

Table = tuple[torch.Tensor, torch.Tensor]  # indices and weights of the summed elements, each [taps, out]
Maker = Callable[[int, int, bool, float | None, torch.device], Table]


def gathered(x: torch.Tensor, dim: int, table: Table) -> torch.Tensor:
    """The weighted sums of a table along ``dim``."""
    indices, weights = table
    taken = x.index_select(dim, indices.flatten()).unflatten(dim, indices.shape)
    return (taken * _along(weights, dim, taken.dim())).sum(dim)


def scattered(gradient: torch.Tensor, dim: int, n: int, table: Table) -> torch.Tensor:
    """The gradient of :func:`gathered` with respect to an input of ``n`` elements along ``dim``."""
    indices, weights = table
    parts = gradient.unsqueeze(dim) * _along(weights, dim, gradient.dim() + 1)
    size = [*gradient.shape[:dim], n, *gradient.shape[dim + 1 :]]
    return gradient.new_zeros(size).index_add(dim, indices.flatten(), parts.flatten(dim, dim + 1))


def _along(weights: torch.Tensor, dim: int, rank: int) -> torch.Tensor:
    return weights.view(*weights.shape, *([1] * (rank - dim - 2)))


# --- tables of the interpolations


def _scale(n: int, out: int, align_corners: bool, scale: float | None) -> float:
    """The distance in the input of neighbouring elements of the output."""
    if align_corners:
        return (n - 1) / (out - 1) if out > 1 else 0.0
    return 1 / scale if scale else n / out


def _positions(n: int, out: int, align_corners: bool, scale: float | None, device: torch.device) -> torch.Tensor:
    number, step = torch.arange(out, device=device, dtype=torch.float32), _scale(n, out, align_corners, scale)
    return number * step if align_corners else (number + 0.5) * step - 0.5


def _linear(n: int, out: int, align_corners: bool, scale: float | None, device: torch.device) -> Table:
    position = _positions(n, out, align_corners, scale, device).clamp(min=0)
    first = position.floor()
    part = position - first
    indices = first.to(torch.int64) + torch.arange(2, device=device)[:, None]
    return indices.clamp(max=n - 1), torch.stack([1 - part, part])


def _cubic(n: int, out: int, align_corners: bool, scale: float | None, device: torch.device) -> Table:
    position = _positions(n, out, align_corners, scale, device)
    second = position.floor()
    part = position - second
    indices = second.to(torch.int64) + torch.arange(-1, 3, device=device)[:, None]
    weights = [_far(part + 1), _near(part), _near(1 - part), _far(2 - part)]
    return indices.clamp(0, n - 1), torch.stack(weights)


_SHARPNESS = -0.75  # of the cubic filter, as everywhere in PyTorch


def _near(x: torch.Tensor) -> torch.Tensor:
    """The cubic filter up to a distance of 1."""
    return ((_SHARPNESS + 2) * x - (_SHARPNESS + 3)) * x * x + 1


def _far(x: torch.Tensor) -> torch.Tensor:
    """The cubic filter at distances from 1 to 2."""
    return ((_SHARPNESS * x - 5 * _SHARPNESS) * x + 8 * _SHARPNESS) * x - 4 * _SHARPNESS


def _nearest(exact: bool) -> Maker:
    def make(n: int, out: int, align_corners: bool, scale: float | None, device: torch.device) -> Table:
        number, step = torch.arange(out, device=device, dtype=torch.float32), _scale(n, out, False, scale)
        indices = ((number + 0.5 if exact else number) * step).to(torch.int64).clamp(max=n - 1)
        return indices[None], torch.ones(1, out, device=device)

    return make


# --- the ops


def _forward(
    make: Maker, x: torch.Tensor, size: Sequence[int], align_corners: bool, *scales: float | None
) -> torch.Tensor:
    scales = scales or (None,) * len(size)
    result = x.to(torch.float32)
    for dim in reversed(range(len(size))):  # rows first, as on the host
        n, out = x.shape[dim + 2], size[dim]
        result = gathered(result, dim + 2, make(n, out, align_corners, scales[dim], x.device))
    return result.to(x.dtype)


def _backward(
    make: Maker,
    gradient: torch.Tensor,
    size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> torch.Tensor:
    scales = scales or (None,) * len(size)
    result = gradient.to(torch.float32)
    for dim in range(len(size)):
        n, out = input_size[dim + 2], size[dim]
        table = make(n, out, align_corners, scales[dim], gradient.device)
        result = scattered(result, dim + 2, n, table)
    return result.to(gradient.dtype)


def _nearest_backward(
    make: Maker, gradient: torch.Tensor, size: Sequence[int], input_size: Sequence[int], *scales: float | None
) -> torch.Tensor:
    return _backward(make, gradient, size, input_size, False, *scales)


def _register(names: dict[str, Maker], backward: Callable[..., Any], forward: Callable[..., Any] | None) -> None:
    for name, make in names.items():
        if forward is not None:
            decomposes(getattr(aten, name).default)(partial(forward, make))
        decomposes(getattr(aten, f"{name}_backward").default)(partial(backward, make))


_register(
    {
        "upsample_linear1d": _linear,
        "upsample_bilinear2d": _linear,
        "upsample_trilinear3d": _linear,
        "upsample_bicubic2d": _cubic,
    },
    _backward,
    _forward,
)
# Nearest neighbours need no weights: PyTorch's decomposition of the forward op is as good.
_register({f"upsample_nearest{n}d": _nearest(False) for n in (1, 2, 3)}, _nearest_backward, None)
_register({f"_upsample_nearest_exact{n}d": _nearest(True) for n in (1, 2, 3)}, _nearest_backward, None)
