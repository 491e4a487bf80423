"""Matrix products."""

from __future__ import annotations

import torch

from ..loop_ir.builder import Builder, Number, Value, broadcast
from .registry import lowers
from .views import view

aten = torch.ops.aten


@lowers(aten.mm.default, aten.bmm.default, aten._int_mm.default)
def mm(b: Builder, x: Value, y: Value) -> Value:
    return b.matmul(x, y, b.meta.dtype)


@lowers(aten._weight_int8pack_mm.default)
def weight_int8pack_mm(b: Builder, x: Value, weight: Value, scales: Value) -> Value:
    """``x @ weight.T * scales``, rounded once."""
    product = b.matmul(x, b.cast(weight, x.dtype).permute([1, 0]), torch.float32)
    return b.pointwise("mul", product, scales, dtype=b.meta.dtype)


@lowers(aten.mv.default)
def mv(b: Builder, x: Value, y: Value) -> Value:
    return b.matmul(x, y.unsqueeze(1), b.meta.dtype).squeeze(1)


@lowers(aten.dot.default)
def dot(b: Builder, x: Value, y: Value) -> Value:
    return b.matmul(x.unsqueeze(0), y.unsqueeze(1), b.meta.dtype).squeeze(1).squeeze(0)


@lowers(aten.vdot.default)
def vdot(b: Builder, x: Value, y: Value) -> Value:
    return dot(b, x, y)


def _added(b: Builder, bias: Value, x: Value, y: Value, beta: Number, alpha: Number) -> Value:
    """beta * bias + alpha * (x @ y), rounded once. A term with the factor 0 is not read, so its NaNs do not count."""
    dtype = b.meta.dtype
    if alpha == 0:
        size = (*broadcast([x.size[:-2], y.size[:-2]]), x.size[-2], y.size[-1])
        return b.full(size, 0, dtype) if beta == 0 else b.copy(_times(b, bias, beta).expand(size))
    if not dtype.is_floating_point:
        return _added_integers(b, bias, b.matmul(x, y, dtype), int(beta), int(alpha))
    if beta == 0 and alpha == 1:
        return b.matmul(x, y, dtype)
    product = b.matmul(x, y, torch.float32)
    if beta == 0:
        return b.pointwise("mul", product, float(alpha), dtype=dtype)
    if alpha == 1 and beta == 1:
        return b.pointwise("add", product, bias, dtype=dtype)
    if beta != 1:
        bias = b.pointwise("mul", bias, float(beta), dtype=torch.float32)
    return b.pointwise("fma", product, float(alpha), bias, dtype=dtype)


def _times(b: Builder, x: Value, factor: Number) -> Value:
    factor = float(factor) if x.dtype.is_floating_point else int(factor)
    return x if factor == 1 else b.pointwise("mul", x, factor, dtype=x.dtype)


def _added_integers(b: Builder, bias: Value, product: Value, beta: int, alpha: int) -> Value:
    dtype = b.meta.dtype
    if alpha != 1:
        product = b.pointwise("mul", product, alpha, dtype=dtype)
    if beta == 0:
        return product
    if beta != 1:
        bias = b.pointwise("mul", bias, beta, dtype=dtype)
    return b.pointwise("add", product, bias, dtype=dtype)


@lowers(aten.addr.default)
def addr(b: Builder, bias: Value, x: Value, y: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    dtype = b.meta.dtype
    if not dtype.is_floating_point:
        outer = b.pointwise("logical_and" if dtype == torch.bool else "mul", x.unsqueeze(1), y, dtype=dtype)
        if dtype == torch.bool:
            outer = b.pointwise("logical_and", outer, bool(alpha), dtype=dtype)
            return b.pointwise("logical_or", outer, bias, dtype=dtype) if beta else outer
        return _added_integers(b, bias, outer, int(beta), int(alpha))
    if alpha != 1:
        y = b.pointwise("mul", y, float(alpha), dtype=torch.float32)
    if beta == 0:
        return b.pointwise("mul", x.unsqueeze(1), y, dtype=dtype)
    if beta != 1:
        bias = b.pointwise("mul", bias, float(beta), dtype=torch.float32)
    return b.pointwise("fma", x.unsqueeze(1), y, bias, dtype=dtype)


@lowers(aten.linalg_cross.default)
def cross(b: Builder, x: Value, y: Value, *, dim: int = -1) -> Value:
    """The two products of a component stay in fp32 until their difference is rounded."""
    out, dtype = b.like_meta(), b.meta.dtype
    dim %= len(out.size)
    inner = torch.float32 if dtype.is_floating_point else dtype
    x, y = x.expand(out.size), y.expand(out.size)
    for i, (j, k) in enumerate(((1, 2), (2, 0), (0, 1))):
        left = b.pointwise("mul", x.narrow(dim, j, 1), y.narrow(dim, k, 1), dtype=inner)
        right = b.pointwise("mul", x.narrow(dim, k, 1), y.narrow(dim, j, 1), dtype=inner)
        b.pointwise("sub", left, right, dtype=dtype, out=out.narrow(dim, i, 1))
    return out


@lowers(aten.addmm.default, aten.baddbmm.default)
def addmm(b: Builder, bias: Value, x: Value, y: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    return _added(b, bias, x, y, beta, alpha)


@lowers(aten.addmv.default)
def addmv(b: Builder, bias: Value, x: Value, y: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    bias = bias.unsqueeze(-1) if bias.size else bias
    return _added(b, bias, x, y.unsqueeze(1), beta, alpha).squeeze(1)


@lowers(aten.addbmm.default)
def addbmm(b: Builder, bias: Value, x: Value, y: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    batch, m, k = x.size
    left = view(b, b.copy(x.permute([1, 0, 2])), [m, batch * k])
    right = view(b, y, [batch * k, y.size[2]])
    return _added(b, bias, left, right, beta, alpha)
