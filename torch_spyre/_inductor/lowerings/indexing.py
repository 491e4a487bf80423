"""Reading and writing through index tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any

import torch

from ..loop_ir import Access
from ..loop_ir.builder import Builder, Number, Unsupported, Value, broadcast, fitting, is_integer
from .registry import lowers
from .views import viewed

aten = torch.ops.aten

Indices = Sequence[Value | None]
Change = Callable[[Value], None]


@lowers(aten.embedding.default)
def embedding(b: Builder, weight: Value, indices: Value, *_: Any, **__: Any) -> Value:
    return index(b, weight, [_from_zero(b, indices, weight.size[0])])


@lowers(aten.embedding_renorm.default)
def embedding_renorm(b: Builder, weight: Value, indices: Value, max_norm: float, norm_type: float) -> Value:
    """Rows that are looked up and longer than ``max_norm`` are made shorter."""
    at = _flat(b, indices)
    rows = index(b, weight, [at])
    norm = _norms(b, rows, norm_type)
    scale = b.pointwise("div", max_norm, b.pointwise("add", norm, 1e-7, dtype=norm.dtype), dtype=norm.dtype)
    longer = b.pointwise("gt", norm, max_norm, dtype=torch.bool)
    scale = b.pointwise("where", longer, scale, 1.0, dtype=norm.dtype)
    return index_put(b, weight, [at], b.pointwise("mul", rows, scale, dtype=weight.dtype))


def _norms(b: Builder, rows: Value, p: float) -> Value:
    """A norm for each row, fp32."""
    size, wide = b.pointwise("abs", rows, dtype=torch.float32), torch.float32
    if p == inf:
        return b.reduce("amax", size, [1], True, wide)
    if p == 2:
        squares = b.pointwise("square", size, dtype=wide)
        return b.pointwise("sqrt", b.total("sum", squares, [1], True, wide, of=rows.dtype), dtype=wide)
    total = b.total("sum", b.pointwise("pow", size, float(p), dtype=wide), [1], True, wide, of=rows.dtype)
    return b.pointwise("pow", total, 1 / p, dtype=wide)


def _from_zero(b: Builder, at: Value, extent: int) -> Value:
    """Indices of an op for which negative ones are errors: the card would count them from the end."""
    _check_indices(at)
    return b.pointwise("where", b.pointwise("lt", at, 0, dtype=torch.bool), extent, at, dtype=torch.int64)


def _check_indices(at: Value) -> None:
    if at.dtype not in (torch.int64, torch.int32):
        raise Unsupported(f"indices of {at.dtype}")  # PyTorch has an error for it


class _Advanced:
    """``x[indices]``: the result's dimensions, and how each moves x directly or through an index."""

    def __init__(self, x: Value, indices: Indices) -> None:
        given = [(dim, i) for dim, i in enumerate(indices) if i is not None]
        if any(i.dtype == torch.bool or i.dtype == torch.uint8 for _, i in given):
            raise Unsupported("indexing with a mask: the size of the result depends on its values")
        for _, i in given:
            _check_indices(i)
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
    masked = _mask(out, indices)
    if masked is None:
        at = _Advanced(out, indices)
        b.scatter(name, at.access, at.sizes, at.jumps, values)
        return
    mask, dim, covered = masked
    chosen = _for_all_places(out, values, dim, covered)
    if name == "scatter_add":
        chosen = b.pointwise("add", out, chosen, dtype=out.dtype)
    b.pointwise("where", mask, chosen, out, dtype=out.dtype, out=out)


def _mask(x: Value, indices: Indices) -> tuple[Value, int, int] | None:
    """The mask of ``x[mask]`` where that is all there is, over the dimensions of x; where it begins, and its rank."""
    given = [(dim, i) for dim, i in enumerate(indices) if i is not None]
    if len(given) != 1 or given[0][1].dtype != torch.bool:
        return None
    dim, mask = given[0]
    rank = len(mask.size)
    while dim + len(mask.size) < len(x.size):
        mask = mask.unsqueeze(len(mask.size))
    return mask, dim, rank


def _for_all_places(x: Value, values: Value | Number, dim: int, rank: int) -> Value | Number:
    """Values for ``x[mask]`` that are the same wherever the mask is set, over the dimensions of x."""
    if not isinstance(values, Value):
        return values
    place = dim - (len(x.size) - rank + 1)  # of the mask's places in the result, from its end
    if len(values.size) < -place:
        return values
    if values.size[place] != 1:
        raise Unsupported("writing several values through a mask: how many depends on its values")
    place += len(values.size)
    values = values.squeeze(place)
    for _ in range(rank):
        values = values.unsqueeze(place)
    return values


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(b: Builder, x: Value, indices: Indices, values: Value | Number, accumulate: bool = False) -> Value:
    if accumulate:
        return _accumulated(b, x, lambda table: _put(b, table, indices, values, "scatter_add"))
    return _changed(b, x, lambda table: _put(b, table, indices, values, "scatter"))


@lowers(aten.index_put_.default)
def index_put_(b: Builder, x: Value, indices: Indices, values: Value, accumulate: bool = False) -> Value:
    if accumulate:
        b.copy(index_put(b, x, indices, values, True), x)
    else:
        _put(b, x, indices, values, "scatter")
    return x


def _changed(b: Builder, x: Value, change: Change) -> Value:
    """A copy of x after a change."""
    out = b.copy(x, b.like_meta())
    change(_one_dim(out))
    return out


def _accumulated(b: Builder, x: Value, combine: Change) -> Value:
    """Many updates of one element round once: they meet in fp32 (or int64)."""
    table = b.copy(x, b.empty(x.size, x.dtype if is_integer(x.dtype) else torch.float32))
    combine(_one_dim(table))
    return b.cast(table, x.dtype)


def _one_dim(x: Value) -> Value:
    """Tensors without dimensions are indexed as if they had one."""
    return x if x.size else replace(x, size=(1,), stride=(1,))


def _along(x: Value, dim: int, at: Value) -> list[Value | None]:
    """The indices of ``x[:, ..., at]``, with ``at`` in dimension ``dim``."""
    return [None] * (dim % len(x.size)) + [_one_dim(at)]


def _along_from_zero(b: Builder, x: Value, dim: int, at: Value) -> list[Value | None]:
    return _along(x, dim, _from_zero(b, at, x.size[dim]))


@lowers(aten.index_add.default)
def index_add(b: Builder, x: Value, dim: int, at: Value, values: Value, *, alpha: Number = 1) -> Value:
    if alpha != 1:
        wide = torch.int64 if is_integer(x.dtype) else torch.float32
        values = b.pointwise("mul", values, alpha if is_integer(x.dtype) else float(alpha), dtype=wide)
    return _accumulated(b, x, lambda table: _rows(b, table, dim, at, values, "scatter_add"))


def _rows(b: Builder, x: Value, dim: int, at: Value, values: Value | Number, name: str) -> None:
    """Puts whole slices across ``dim``, one for each index."""
    if isinstance(values, Value):
        values = _one_dim(values)
    _put(b, x, _along_from_zero(b, x, dim, at), values, name)


@lowers(aten.index_copy.default)
def index_copy(b: Builder, x: Value, dim: int, at: Value, values: Value) -> Value:
    return _changed(b, x, lambda table: _rows(b, table, dim, at, values, "scatter"))


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(b: Builder, x: Value, dim: int, at: Value, value: Value | Number) -> Value:
    value = fitting(value, x.dtype)
    return _changed(b, x, lambda table: _put(b, table, _along(table, dim, at), value, "scatter"))


@lowers(aten.gather.default)
def gather(b: Builder, x: Value, dim: int, at: Value, *, sparse_grad: bool = False) -> Value:
    size, x, at = at.size, _indexable(b, _one_dim(x)), _one_dim(at)
    dim %= len(x.size)
    strides = tuple(0 if d == dim else s for d, s in enumerate(x.stride))
    at = _from_zero(b, at, x.size[dim])
    out = b.gather(Access(x.buffer, strides, x.offset), at.size, [(at, x.size[dim], x.stride[dim])], x.dtype)
    return out if size else out.squeeze(0)


@lowers(aten.index_select.default)
def index_select(b: Builder, x: Value, dim: int, at: Value) -> Value:
    if len(at.size) > 1:
        raise Unsupported("an index of several dimensions")  # PyTorch has an error for it
    table = _one_dim(x)
    out = index(b, table, _along_from_zero(b, table, dim, at))
    return out if x.size else out.squeeze(0)


@lowers(aten.take.default)
def take(b: Builder, x: Value, at: Value) -> Value:
    return index(b, _flat(b, x), [at])


def _flat(b: Builder, x: Value) -> Value:
    return viewed(b.contiguous(x), aten.view.default, [-1])


@lowers(aten.put.default)
def put(b: Builder, x: Value, at: Value, values: Value, accumulate: bool = False) -> Value:
    at, values = _flat(b, at), _flat(b, values)

    def change(table: Value) -> None:
        flat = b.copy(_flat(b, table))
        _put(b, flat, [at], values, "scatter_add" if accumulate else "scatter")
        b.copy(viewed(flat, aten.view.default, table.size), table)

    return _accumulated(b, x, change) if accumulate else _changed(b, x, change)


def _scattered(b: Builder, x: Value, dim: int, at: Value, values: Value | Number, name: str) -> None:
    at, dim = _one_dim(at), dim % len(x.size)
    strides = tuple(0 if d == dim else s for d, s in enumerate(x.stride))
    if isinstance(values, Value):
        values = _one_dim(values)
        for d, n in enumerate(at.size):
            values = values.narrow(d, 0, n)
    at = _from_zero(b, at, x.size[dim])
    b.scatter(name, Access(x.buffer, strides, x.offset), at.size, [(at, x.size[dim], x.stride[dim])], values)


@lowers(aten.scatter.src, aten.scatter.value)
def scatter(b: Builder, x: Value, dim: int, at: Value, values: Value | Number) -> Value:
    values = fitting(values, x.dtype)
    return _changed(b, x, lambda table: _scattered(b, table, dim, at, values, "scatter"))


@lowers(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with(b: Builder, x: Value, dim: int, at: Value, values: Value | Number, *, reduce: str) -> Value:
    name = {"add": "scatter_add", "multiply": "scatter_mul"}[reduce]
    return _accumulated(b, x, lambda table: _scattered(b, table, dim, at, values, name))


@lowers(aten.scatter_add.default)
def scatter_add(b: Builder, x: Value, dim: int, at: Value, values: Value) -> Value:
    return _accumulated(b, x, lambda table: _scattered(b, table, dim, at, values, "scatter_add"))


# How scatter_reduce combines values, and what changes none of them.
_REDUCTIONS = {
    "sum": ("scatter_add", 0.0),
    "mean": ("scatter_add", 0.0),
    "prod": ("scatter_mul", 1.0),
    "amax": ("scatter_amax", -inf),
    "amin": ("scatter_amin", inf),
}

# Where values go: a table, a dimension, indices, values, and how they are combined.
Spread = Callable[[Builder, Value, int, Value, Value | Number, str], None]


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    b: Builder, x: Value, dim: int, at: Value, values: Value, reduce: str, *, include_self: bool = True
) -> Value:
    return _reduced(b, x, dim, at, values, reduce, include_self, _scattered)


@lowers(aten.index_reduce.default)
def index_reduce(
    b: Builder, x: Value, dim: int, at: Value, values: Value, reduce: str, *, include_self: bool = True
) -> Value:
    return _reduced(b, x, dim, at, values, reduce, include_self, _rows)


def _reduced(
    b: Builder, x: Value, dim: int, at: Value, values: Value, reduce: str, include_self: bool, spread: Spread
) -> Value:
    name, nothing = _REDUCTIONS[reduce]
    if x.dtype == torch.bool and (reduce == "mean" or spread is _rows):
        raise Unsupported(f"{reduce} of bool")  # PyTorch has an error for it

    def combine(table: Value) -> None:
        if not include_self:  # what was there counts only where no value comes
            start = nothing if isfinite(nothing) or not is_integer(table.dtype) else _limit(table.dtype, nothing)
            spread(b, table, dim, at, start, "scatter")
        spread(b, table, dim, at, values, name)
        if reduce == "mean":
            _divide_by_count(b, table, dim, at, include_self, spread)

    return _accumulated(b, x, combine)


def _limit(dtype: torch.dtype, towards: float) -> int:
    """The smallest or largest integer that the card keeps."""
    limits = torch.iinfo(torch.int32 if dtype == torch.int64 else dtype)
    return limits.max if towards > 0 else limits.min


def _divide_by_count(b: Builder, table: Value, dim: int, at: Value, include_self: bool, spread: Spread) -> None:
    integer = is_integer(table.dtype)
    count = b.full(table.size, int(include_self), torch.int64 if integer else torch.float32)
    spread(b, count, dim, at, 1, "scatter_add")
    if not include_self:
        count = b.pointwise("maximum", count, 1 if integer else 1.0, dtype=count.dtype)
    b.pointwise("floor_divide" if integer else "div", table, count, dtype=table.dtype, out=table)


@lowers(aten.masked_scatter.default)
def masked_scatter(b: Builder, x: Value, mask: Value, source: Value) -> Value:
    """The n-th place of the mask takes the n-th value. Too few of them is an index out of range."""
    if mask.dtype != torch.bool or not source.numel:
        raise Unsupported("a mask of numbers, or no values to take")  # PyTorch has errors for them
    size = broadcast([x.size, mask.size])
    places = _flat(b, mask.expand(size))
    rank = b.along("cumsum", places, 0, torch.int64)
    nth = b.pointwise("where", places, b.pointwise("sub", rank, 1, dtype=torch.int64), 0, dtype=torch.int64)
    values = viewed(index(b, _flat(b, source), [nth]), aten.view.default, size)
    return b.pointwise("where", mask, values, x, dtype=b.meta.dtype)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    b: Builder, gradient: Value, indices: Value, rows: int, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    gradient = b.cast(gradient, torch.float32)
    if scale_grad_by_freq:
        count = b.full([rows], 0.0, torch.float32)
        _put(b, count, [indices], 1.0, "scatter_add")
        often = index(b, count, [indices])
        gradient = b.pointwise("div", gradient, often.unsqueeze(len(often.size)), dtype=torch.float32)
    table = b.full([rows, gradient.size[-1]], 0.0, torch.float32)
    _put(b, table, [indices], gradient, "scatter_add")
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
