"""Norms: computed in fp32 and rounded once, at the end."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..loop_ir.builder import Builder, Value
from .reductions import moments
from .registry import lowers
from .views import view

aten = torch.ops.aten


@lowers(aten.native_layer_norm.default)
def layer_norm(
    b: Builder, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    out, mean, scale = normal(b, x, shape, weight, bias, eps, b.meta[0].dtype)
    return out, b.cast(mean, b.meta[1].dtype), b.cast(scale, b.meta[2].dtype)


def normal(
    b: Builder,
    x: Value,
    shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Value, Value, Value]:
    """The layer norm, the mean, and the reciprocal standard deviation, all but the first in fp32."""
    dims = list(range(len(x.size) - len(shape), len(x.size)))
    variance, mean = moments(b, x, dims, 0, True)
    scale = b.pointwise("rsqrt", b.pointwise("add", variance, eps, dtype=torch.float32), dtype=torch.float32)
    centred = b.pointwise("sub", x, mean, dtype=torch.float32)
    return _affine(b, b.pointwise("mul", centred, scale, dtype=torch.float32), weight, bias, dtype), mean, scale


def _affine(b: Builder, x: Value, weight: Value | None, bias: Value | None, dtype: torch.dtype) -> Value:
    """x * weight + bias in one op; a weight or bias of None is left out."""
    if weight is not None and bias is not None:
        return b.pointwise("fma", x, weight, bias, dtype=dtype)
    if weight is not None:
        return b.pointwise("mul", x, weight, dtype=dtype)
    if bias is not None:
        return b.pointwise("add", x, bias, dtype=dtype)
    return b.cast(x, dtype)


@lowers(aten.native_group_norm.default)
def group_norm(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    n: int,
    channels: int,
    inner: int,
    groups: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    grouped = view(b, b.contiguous(x), [n, groups, channels // groups * inner])
    variance, mean = moments(b, grouped, [2], 0, True)
    scale = b.pointwise("rsqrt", b.pointwise("add", variance, eps, dtype=torch.float32), dtype=torch.float32)
    centred = b.pointwise("sub", grouped, mean, dtype=torch.float32)
    normal = view(b, b.pointwise("mul", centred, scale, dtype=torch.float32), [n, channels, inner])
    weight, bias = (v.unsqueeze(-1) if v is not None else None for v in (weight, bias))
    out = view(b, _affine(b, normal, weight, bias, b.meta[0].dtype), x.size)
    return (
        out,
        b.cast(view(b, mean, [n, groups]), b.meta[1].dtype),
        b.cast(view(b, scale, [n, groups]), b.meta[2].dtype),
    )


@lowers(aten._fused_rms_norm.default)
def rms_norm(
    b: Builder, x: Value, shape: Sequence[int], weight: Value | None, eps: float | None
) -> tuple[Value, Value]:
    out, scale = rms_normal(b, x, shape, weight, eps, b.meta[0].dtype)
    return out, b.cast(scale, b.meta[1].dtype)


def rms_normal(
    b: Builder, x: Value, shape: Sequence[int], weight: Value | None, eps: float | None, dtype: torch.dtype
) -> tuple[Value, Value]:
    """The RMS norm, and the reciprocal root mean square in fp32."""
    dims = list(range(len(x.size) - len(shape), len(x.size)))
    squares = b.pointwise("square", x, dtype=torch.float32)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    mean = b.total("mean", squares, dims, True, torch.float32, of=x.dtype)
    scale = b.pointwise("rsqrt", b.pointwise("add", mean, eps, dtype=torch.float32), dtype=torch.float32)
    return _affine(b, b.pointwise("mul", x, scale, dtype=torch.float32), weight, None, dtype), scale
