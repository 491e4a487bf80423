"""Reading and writing through index tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..builder import Builder, Number, Unsupported, Value, broadcast, is_integer
from ..loop_ir import Access
from .registry import lowers

aten = torch.ops.aten

Indices = Sequence[Value | None]


@lowers(aten.embedding.default)
def embedding(b: Builder, weight: Value, indices: Value, *_: Any, **__: Any) -> Value:
    return index(b, weight, [_from_zero(b, indices, weight.size[0])])


def _from_zero(b: Builder, at: Value, extent: int) -> Value:
    """Indices of an op for which negative ones are errors: the card would count them from the end."""
    return b.pointwise("where", b.pointwise("lt", at, 0, dtype=torch.bool), extent, at, dtype=torch.int64)


class _Advanced:
    """``x[indices]``: the result's dimensions, and how each moves x directly or through an index."""

    def __init__(self, x: Value, indices: Indices) -> None:
        given = [(dim, i) for dim, i in enumerate(indices) if i is not None]
        if any(i.dtype == torch.bool or i.dtype == torch.uint8 for _, i in given):
            raise Unsupported("indexing with a mask: the size of the result depends on its values")
        dims = [dim for dim, _ in given]
        shape = broadcast([i.size for _, i in given])
        adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
        kept = [dim for dim in range(len(x.size)) if dim not in dims]
        before = [dim for dim in kept if adjacent and dim < dims[0]]
        after = [dim for dim in kept if dim not in before]
        self.sizes = (*(x.size[d] for d in before), *shape, *(x.size[d] for d in after))
        self.strides = (*(x.stride[d] for d in before), *([0] * len(shape)), *(x.stride[d] for d in after))
        self.access = Access(x.buffer, self.strides, x.offset)
        self.jumps = []
        for dim, values in given:
            values = values.expand(shape)
            for _ in after:
                values = values.unsqueeze(len(values.size))
            self.jumps.append((values, x.size[dim], x.stride[dim]))


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(b: Builder, x: Value, indices: Indices) -> Value:
    x = _indexable(b, x)
    at = _Advanced(x, indices)
    return b.gather(at.access, at.sizes, at.jumps, x.dtype)


def _indexable(b: Builder, x: Value) -> Value:
    """What an index moves along has to be a dimension of the buffer itself."""
    buffer = b.buffer(x)
    known = dict(zip(buffer.stride, buffer.size, strict=True))
    whole = all(n == 1 or (s and known.get(s, 0) >= n) for n, s in zip(x.size, x.stride, strict=True))
    return x if whole and not x.offset else b.copy(x)


def _put(b: Builder, out: Value, indices: Indices, values: Value | Number, name: str) -> None:
    mask = _mask(out, indices)
    if mask is not None and name == "scatter" and (not isinstance(values, Value) or values.numel == 1):
        one = replace(values, size=(), stride=()) if isinstance(values, Value) else values
        b.pointwise("where", mask, one, out, dtype=out.dtype, out=out)
        return
    at = _Advanced(out, indices)
    b.scatter(name, at.access, at.sizes, at.jumps, values)


def _mask(x: Value, indices: Indices) -> Value | None:
    """The mask of ``x[mask]`` where that is all there is, over the dimensions of x."""
    given = [(dim, i) for dim, i in enumerate(indices) if i is not None]
    if len(given) != 1 or given[0][1].dtype != torch.bool:
        return None
    dim, mask = given[0]
    while dim + len(mask.size) < len(x.size):
        mask = mask.unsqueeze(len(mask.size))
    return mask


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(b: Builder, x: Value, indices: Indices, values: Value | Number, accumulate: bool = False) -> Value:
    if not accumulate:
        out = b.copy(x, b.like_meta())
        _put(b, out, indices, values, "scatter")
        return out
    return _accumulated(b, x, lambda table: _put(b, table, indices, values, "scatter_add"))


@lowers(aten.index_put_.default)
def index_put_(b: Builder, x: Value, indices: Indices, values: Value, accumulate: bool = False) -> Value:
    if accumulate:
        b.copy(index_put(b, x, indices, values, True), x)
    else:
        _put(b, x, indices, values, "scatter")
    return x


def _accumulated(b: Builder, x: Value, combine: Any) -> Value:
    """Many updates of one element round once: they meet in fp32 (or int64)."""
    wide = x.dtype if is_integer(x.dtype) else torch.float32
    table = b.empty(x.size, wide)
    b.copy(x, table)
    combine(table)
    return b.cast(table, x.dtype)


def _along(x: Value, dim: int, at: Value) -> list[Value | None]:
    """The indices of ``x[:, ..., at]``, with ``at`` in dimension ``dim``."""
    return [None] * (dim % len(x.size)) + [at if at.size else at.unsqueeze(0)]


def _along_from_zero(b: Builder, x: Value, dim: int, at: Value) -> list[Value | None]:
    return _along(x, dim, _from_zero(b, at, x.size[dim]))


@lowers(aten.index_add.default)
def index_add(b: Builder, x: Value, dim: int, at: Value, values: Value, *, alpha: Number = 1) -> Value:
    _refuse_scalar(x, "index_add")
    if alpha != 1:
        wide = torch.int64 if is_integer(x.dtype) else torch.float32
        values = b.pointwise("mul", values, alpha if is_integer(x.dtype) else float(alpha), dtype=wide)
    return index_put(b, x, _along_from_zero(b, x, dim, at), values, True)


@lowers(aten.index_copy.default)
def index_copy(b: Builder, x: Value, dim: int, at: Value, values: Value) -> Value:
    _refuse_scalar(x, "index_copy")
    return index_put(b, x, _along_from_zero(b, x, dim, at), values)


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(b: Builder, x: Value, dim: int, at: Value, value: Value | Number) -> Value:
    _refuse_scalar(x, "index_fill")
    return index_put(b, x, _along(x, dim, at), value)


def _refuse_scalar(x: Value, name: str) -> None:
    if not x.size:
        raise Unsupported(f"{name} into a 0-dim tensor")


@lowers(aten.gather.default)
def gather(b: Builder, x: Value, dim: int, at: Value, *, sparse_grad: bool = False) -> Value:
    if not x.size:
        return b.copy(x.expand(at.size) if at.size else x)
    x, dim = _indexable(b, x), dim % len(x.size)
    strides = tuple(0 if d == dim else s for d, s in enumerate(x.stride))
    access = Access(x.buffer, strides, x.offset)
    at = _from_zero(b, at, x.size[dim])
    return b.gather(access, at.size, [(at, x.size[dim], x.stride[dim])], x.dtype)


@lowers(aten.index_select.default)
def index_select(b: Builder, x: Value, dim: int, at: Value) -> Value:
    if not x.size:
        return b.copy(x)
    return index(b, x, _along_from_zero(b, x, dim, at))


def _scattered(b: Builder, x: Value, dim: int, at: Value, values: Value | Number, name: str) -> None:
    dim %= max(len(x.size), 1)
    strides = tuple(0 if d == dim else s for d, s in enumerate(x.stride))
    if isinstance(values, Value):
        for d, n in enumerate(at.size):
            values = values.narrow(d, 0, n)
    at = _from_zero(b, at, x.size[dim])
    b.scatter(name, Access(x.buffer, strides, x.offset), at.size, [(at, x.size[dim], x.stride[dim])], values)


@lowers(aten.scatter.src, aten.scatter.value)
def scatter(b: Builder, x: Value, dim: int, at: Value, values: Value | Number) -> Value:
    out = b.copy(x, b.like_meta())
    _refuse_scalar(x, "scatter")
    if at.numel:
        _scattered(b, out, dim, at, values, "scatter")
    return out


@lowers(aten.scatter_add.default)
def scatter_add(b: Builder, x: Value, dim: int, at: Value, values: Value) -> Value:
    _refuse_scalar(x, "scatter_add")
    return _accumulated(b, x, lambda table: _scattered(b, table, dim, at, b.cast(values, table.dtype), "scatter_add"))


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    b: Builder, x: Value, dim: int, at: Value, values: Value, reduce: str, *, include_self: bool = True
) -> Value:
    names = {"sum": "scatter_add", "prod": "scatter_mul", "amax": "scatter_amax", "amin": "scatter_amin"}
    if not include_self or reduce not in names or not x.size:
        raise Unsupported(f"scatter_reduce with {reduce}, include_self={include_self}")
    name = names[reduce]
    return _accumulated(b, x, lambda table: _scattered(b, table, dim, at, b.cast(values, table.dtype), name))


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    b: Builder, gradient: Value, indices: Value, rows: int, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    if scale_grad_by_freq:
        raise Unsupported("an embedding's gradient scaled by frequency")
    table = b.full([rows, gradient.size[-1]], 0.0, torch.float32)
    _put(b, table, [indices], b.cast(gradient, torch.float32), "scatter_add")
    if 0 <= padding_idx < rows:
        b.fill(0.0, table.narrow(0, padding_idx, 1))
    return b.cast(table, b.meta.dtype)


@lowers(aten.flip.default)
def flip(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    for dim in dims:
        dim %= max(len(x.size), 1)
        if not x.size or x.size[dim] < 2:
            continue
        x = index(b, x, [None] * dim + [b.iota([x.size[dim]], x.size[dim] - 1, [-1], torch.int64)])
    return b.copy(x)
