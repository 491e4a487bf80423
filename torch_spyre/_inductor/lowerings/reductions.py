"""Reductions: folds over dimensions, positions of extremes, scans, topk, variances and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..loop_ir.builder import SINGLE, Builder, Number, Unsupported, Value, is_integer
from .registry import lowers

aten = torch.ops.aten


def _dims(x: Value, dim: int | Sequence[int] | None) -> list[int]:
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(len(x.size)))
    return [dim] if isinstance(dim, int) else list(dim)


def fold(b: Builder, name: str, x: Value, dim: Any, keepdim: bool, dtype: torch.dtype) -> Value:
    if not x.size:
        return b.cast(b.copy(x), dtype)
    return b.reduce(name, x, _dims(x, dim), keepdim, dtype)


def _total(b: Builder, name: str, x: Value, dim: Any, keepdim: bool) -> Value:
    if not x.size:
        return b.cast(b.copy(x), b.meta.dtype)
    return b.total(name, x, _dims(x, dim), keepdim, b.meta.dtype)


@lowers(aten.sum.default, aten.sum.dim_IntList)
def sum_(b: Builder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    return _total(b, "sum", x, dim, keepdim)


@lowers(aten.mean.default, aten.mean.dim)
def mean(b: Builder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    return _total(b, "mean", x, dim, keepdim)


@lowers(aten.prod.default, aten.prod.dim_int)
def prod(b: Builder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    return fold(b, "prod", x, dim, keepdim, b.meta.dtype)


def _check_not_empty(x: Value, dim: Any) -> None:
    if any(x.size[d] == 0 for d in _dims(x, dim) if x.size):
        raise Unsupported("a maximum or minimum over no elements")  # the fallback raises PyTorch's own error


def _extreme(b: Builder, name: str, x: Value, dim: Any, keepdim: bool) -> Value:
    _check_not_empty(x, dim)
    if x.dtype == torch.bool:
        name = {"amax": "any", "amin": "all"}[name]
    if is_integer(x.dtype):
        x = b.cast(x, torch.int64)
    wanted = b.meta[0].dtype if isinstance(b.meta, tuple) else b.meta.dtype
    return b.cast(fold(b, name, x, dim, keepdim, x.dtype), wanted)


@lowers(aten.amax.default, aten.max.default)
def amax(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _extreme(b, "amax", x, dim, keepdim)


@lowers(aten.amin.default, aten.min.default)
def amin(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _extreme(b, "amin", x, dim, keepdim)


def _logical(b: Builder, name: str, x: Value, dim: Any, keepdim: bool) -> Value:
    return b.cast(fold(b, name, b.cast(x, torch.bool), dim, keepdim, torch.bool), b.meta.dtype)


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def any_(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _logical(b, "any", x, dim, keepdim)


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
def all_(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _logical(b, "all", x, dim, keepdim)


def _position(b: Builder, name: str, x: Value, dim: int | None, keepdim: bool) -> Value:
    if not x.size:
        return b.full([], 0, torch.int64)
    _check_not_empty(x, dim)
    return b.position(name, x, _dims(x, dim), keepdim)


@lowers(aten.argmax.default)
def argmax(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _position(b, "argmax", x, dim, keepdim)


@lowers(aten.argmin.default)
def argmin(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _position(b, "argmin", x, dim, keepdim)


@lowers(aten.max.dim)
def max_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _extreme(b, "amax", x, dim, keepdim), _position(b, "argmax", x, dim, keepdim)


@lowers(aten.min.dim)
def min_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _extreme(b, "amin", x, dim, keepdim), _position(b, "argmin", x, dim, keepdim)


@lowers(aten.topk.default)
def topk(b: Builder, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Value, Value]:
    if not x.size:
        return b.copy(x), b.full([], 0, torch.int64)
    return b.topk("topkvalue", x, k, dim, largest), b.topk("topkindex", x, k, dim, largest)


@lowers(aten.cumsum.default)
def cumsum(b: Builder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    return b.along("cumsum", x, dim, b.meta.dtype)


@lowers(aten.cumprod.default)
def cumprod(b: Builder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    return b.along("cumprod", x, dim, b.meta.dtype)


@lowers(aten._logcumsumexp.default, aten.logcumsumexp.default)
def logcumsumexp(b: Builder, x: Value, dim: int) -> Value:
    if not x.dtype.is_floating_point:
        raise Unsupported(f"logcumsumexp is not defined for {x.dtype}")  # the fallback raises PyTorch's own error
    return b.along("logcumsumexp", x, dim, b.meta.dtype)


def _running(b: Builder, name: str, x: Value, dim: int) -> tuple[Value, Value]:
    return b.along(f"{name}_value", x, dim, x.dtype), b.along(f"{name}_index", x, dim, torch.int64)


@lowers(aten.cummax.default)
def cummax(b: Builder, x: Value, dim: int) -> tuple[Value, Value]:
    return _running(b, "cummax", x, dim)


@lowers(aten.cummin.default)
def cummin(b: Builder, x: Value, dim: int) -> tuple[Value, Value]:
    return _running(b, "cummin", x, dim)


def moments(b: Builder, x: Value, dim: Any, correction: Number, keepdim: bool) -> tuple[Value, Value]:
    """Variance and mean, in fp32."""
    if not x.size:
        x, dim, keepdim = x.unsqueeze(0), None, False
    dims = _dims(x, dim)
    mean = b.total("mean", x, dims, True, torch.float32, of=x.dtype)
    centred = b.pointwise("sub", x, mean, dtype=torch.float32)
    squares = b.pointwise("square", centred, dtype=torch.float32)
    count = x.numel // max(mean.numel, 1)
    total = b.total("sum", squares, dims, keepdim, torch.float32, of=x.dtype)
    divisor = max(count - float(correction), 0.0)
    variance = b.pointwise("div", total, divisor, dtype=torch.float32)
    if not keepdim:
        kept = [i for i in range(len(x.size)) if i not in [d % len(x.size) for d in dims]]
        mean = mean.permute(kept)
    return variance, mean


def _variance(b: Builder, x: Value, dim: Any, correction: Number, keepdim: bool) -> Value:
    """The variance in fp32. That of fp32 elements is computed in fp64 and rounded once, as PyTorch does on the CPU."""
    dims = _dims(x, dim)
    count = math.prod(x.size[d] for d in dims)
    if x.dtype not in SINGLE or count < 2 or count <= float(correction):
        return moments(b, x, dim, correction, keepdim)[0]
    return b.reduce("variance", x, dims, keepdim, torch.float32, factor=1.0 / (count - float(correction)))


def _correction(unbiased: bool | None, correction: Number | None) -> Number:
    if correction is not None:
        return correction
    return 1 if unbiased is None or unbiased else 0


@lowers(aten.var.correction, aten.var.dim)
def var(
    b: Builder,
    x: Value,
    dim: Any = None,
    unbiased: bool | None = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Value:
    return b.cast(_variance(b, x, dim, _correction(unbiased, correction), keepdim), b.meta.dtype)


@lowers(aten.std.correction)
def std(b: Builder, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Value:
    variance = _variance(b, x, dim, _correction(None, correction), keepdim)
    return b.pointwise("sqrt", variance, dtype=b.meta.dtype)


@lowers(aten.var_mean.correction)
def var_mean(
    b: Builder, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    variance = _variance(b, x, dim, _correction(None, correction), keepdim)
    mean = b.total("mean", x, _dims(x, dim), keepdim, torch.float32, of=x.dtype) if x.size else x
    return b.cast(variance, b.meta[0].dtype), b.cast(mean, b.meta[1].dtype)


@lowers(aten._softmax.default)
def softmax(b: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    if not x.size:
        return b.full([], 1.0, b.meta.dtype)
    dtype = b.meta.dtype
    shifted = b.pointwise("sub", x, b.reduce("amax", x, [dim], True, x.dtype), dtype=dtype)
    exponents = b.pointwise("exp", shifted, dtype=dtype)
    return b.pointwise("div", exponents, b.total("sum", exponents, [dim], True, dtype, of=x.dtype), dtype=dtype)


@lowers(aten._log_softmax.default)
def log_softmax(b: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    if not x.size:
        return b.full([], 0.0, b.meta.dtype)
    shifted = b.pointwise("sub", x, b.reduce("amax", x, [dim], True, x.dtype), dtype=torch.float32)
    exponents = b.pointwise("exp", shifted, dtype=torch.float32)
    total = b.total("sum", exponents, [dim], True, torch.float32, of=x.dtype)
    logarithm = b.pointwise("log", total, dtype=torch.float32)
    return b.pointwise("sub", shifted, logarithm, dtype=b.meta.dtype)
