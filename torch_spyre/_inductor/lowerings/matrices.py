"""Matrix products."""

from __future__ import annotations

import torch

from ..builder import Builder, Number, Value
from .registry import lowers
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
