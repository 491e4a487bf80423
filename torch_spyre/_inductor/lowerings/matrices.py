"""Matrix products, and convolutions as such."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch

from ..builder import Builder, Number, Unsupported, Value
from .registry import lowers
from .shapes import pad
from .views import view

aten = torch.ops.aten


@lowers(aten.mm.default, aten.bmm.default)
def mm(b: Builder, x: Value, y: Value) -> Value:
    return b.matmul(x, y, b.meta.dtype)


@lowers(aten.mv.default)
def mv(b: Builder, x: Value, y: Value) -> Value:
    return b.matmul(x, y.unsqueeze(1), b.meta.dtype).squeeze(1)


@lowers(aten.dot.default)
def dot(b: Builder, x: Value, y: Value) -> Value:
    return b.matmul(x.unsqueeze(0), y.unsqueeze(1), b.meta.dtype).squeeze(1).squeeze(0)


def _added(b: Builder, bias: Value, product: Value, beta: Number, alpha: Number) -> Value:
    """beta * bias + alpha * product; a beta of 0 ignores what the bias holds."""
    dtype = b.meta.dtype
    if alpha != 1:
        product = b.pointwise("mul", product, float(alpha), dtype=dtype)
    if beta == 0:
        return product
    if beta == 1:
        return b.pointwise("add", product, bias, dtype=dtype)
    return b.pointwise("fma", bias, float(beta), product, dtype=dtype)


@lowers(aten.addmm.default, aten.baddbmm.default)
def addmm(b: Builder, bias: Value, x: Value, y: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    return _added(b, bias, b.matmul(x, y, b.meta.dtype), beta, alpha)


@lowers(aten.addmv.default)
def addmv(b: Builder, bias: Value, x: Value, y: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    return _added(b, bias, mv(b, x, y), beta, alpha)


@lowers(aten.addbmm.default)
def addbmm(b: Builder, bias: Value, x: Value, y: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    batch, m, k = x.size
    left = view(b, b.copy(x.permute([1, 0, 2])), [m, batch * k])
    right = view(b, y, [batch * k, y.size[2]])
    return _added(b, bias, b.matmul(left, right, b.meta.dtype), beta, alpha)


@lowers(aten.convolution.default)
def convolution(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    """Windows are a view of the padded input; one copy makes them rows of a matrix, one product does the rest."""
    if transposed:
        raise Unsupported("a transposed convolution")
    spatial = len(weight.size) - 2
    stride, padding, dilation = (list(v) * spatial if len(v) == 1 else list(v) for v in (stride, padding, dilation))
    if len(x.size) != spatial + 2:
        raise Unsupported("a convolution without a batch dimension")
    around = [p for n in reversed(padding) for p in (n, n)]
    x = pad(b, x, around, 0.0) if any(padding) else b.contiguous(x)
    batch, kernel = x.size[0], list(weight.size[2:])
    out_size = list(b.meta.shape[2:])
    inside, outside = weight.size[1], weight.size[0] // groups
    steps = x.stride
    windows = replace(
        x,
        size=(batch, groups, *out_size, inside, *kernel),
        stride=(
            steps[0],
            inside * steps[1],
            *(s * n for s, n in zip(steps[2:], stride, strict=True)),
            steps[1],
            *(s * n for s, n in zip(steps[2:], dilation, strict=True)),
        ),
    )
    length, taps = prod(out_size), inside * prod(kernel)
    rows = view(b, b.copy(windows), [batch, groups, length, taps])
    filters = view(b, weight, [groups, outside, taps])
    product = b.matmul(filters, rows.permute([0, 1, 3, 2]), b.meta.dtype)
    product = view(b, product, b.meta.shape)
    if bias is None:
        return product
    return b.pointwise("add", product, view(b, bias, [-1, *([1] * spatial)]), dtype=b.meta.dtype)
