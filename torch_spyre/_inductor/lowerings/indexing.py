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
    """Scales rows that are looked up and whose norm exceeds ``max_norm`` down to that norm."""
    indices = _flat(b, indices)
    rows = index(b, weight, [indices])
    norm = _norms(b, rows, norm_type)
    scale = b.pointwise("div", max_norm, b.pointwise("add", norm, 1e-7, dtype=norm.dtype), dtype=norm.dtype)
    longer = b.pointwise("gt", norm, max_norm, dtype=torch.bool)
    scale = b.pointwise("where", longer, scale, 1.0, dtype=norm.dtype)
    return index_put(b, weight, [indices], b.pointwise("mul", rows, scale, dtype=weight.dtype))


def _norms(b: Builder, rows: Value, p: float) -> Value:
    """The p-norm of each row, in fp32."""
    fp32 = torch.float32
    magnitudes = b.pointwise("abs", rows, dtype=fp32)
    if p == inf:
        return b.reduce("amax", magnitudes, [1], True, fp32)
    if p == 2:
        squares = b.pointwise("square", magnitudes, dtype=fp32)
        return b.pointwise("sqrt", b.total("sum", squares, [1], True, fp32, of=rows.dtype), dtype=fp32)
    powers = b.pointwise("pow", magnitudes, float(p), dtype=fp32)
    return b.pointwise("pow", b.total("sum", powers, [1], True, fp32, of=rows.dtype), 1 / p, dtype=fp32)


def _from_zero(b: Builder, indices: Value, extent: int) -> Value:
    """Replaces negative indices by one out of range, for ops that refuse them; the card counts them from the end."""
    _check_indices(indices)
    return b.pointwise("where", b.pointwise("lt", indices, 0, dtype=torch.bool), extent, indices, dtype=torch.int64)


def _check_indices(indices: Value) -> None:
    if indices.dtype not in (torch.int64, torch.int32):
        raise Unsupported(f"indices are {indices.dtype}, not int64 or int32")  # the fallback raises PyTorch's own error


class _AdvancedIndexing:
    """``x[indices]``: the sizes of the result, and for each dimension a stride of x or an index tensor."""

    def __init__(self, x: Value, indices: Indices) -> None:
        given = [(dim, i) for dim, i in enumerate(indices) if i is not None]
        if any(i.dtype == torch.bool or i.dtype == torch.uint8 for _, i in given):
            raise Unsupported("the size of the result depends on the values of a mask")
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
        self.indirect = []
        for dim, values in given:
            values = values.expand(shape)
            for _ in after:
                values = values.unsqueeze(len(values.size))
            self.indirect.append((values, x.size[dim], x.stride[dim]))


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(b: Builder, x: Value, indices: Indices) -> Value:
    x = _indexable(b, x)
    indexed = _AdvancedIndexing(x, indices)
    return b.gather(indexed.access, indexed.sizes, indexed.indirect, x.dtype)


def _indexable(b: Builder, x: Value) -> Value:
    """x, or a copy of it where elements repeat: an index along a dimension has to lead somewhere."""
    return x if all(n == 1 or s > 0 for n, s in zip(x.size, x.stride, strict=True)) else b.copy(x)


def _put(b: Builder, out: Value, indices: Indices, values: Value | Number, name: str) -> None:
    """``out[indices] = values``, or combined as the scatter op ``name`` says."""
    masked = _mask(out, indices)
    if masked is None:
        indexed = _AdvancedIndexing(out, indices)
        b.scatter(name, indexed.access, indexed.sizes, indexed.indirect, values)
        return
    mask, dim, rank = masked
    new = _expanded_over_mask(out, values, dim, rank)
    if name == "scatter_add":
        new = b.pointwise("add", out, new, dtype=out.dtype)
    b.pointwise("where", mask, new, out, dtype=out.dtype, out=out)


def _mask(x: Value, indices: Indices) -> tuple[Value, int, int] | None:
    """If a bool mask is the only index: the mask over the dimensions of x, its first dimension there, and its rank."""
    given = [(dim, i) for dim, i in enumerate(indices) if i is not None]
    if len(given) != 1 or given[0][1].dtype != torch.bool:
        return None
    dim, mask = given[0]
    rank = len(mask.size)
    while dim + len(mask.size) < len(x.size):
        mask = mask.unsqueeze(len(mask.size))
    return mask, dim, rank


def _expanded_over_mask(x: Value, values: Value | Number, dim: int, rank: int) -> Value | Number:
    """The values of ``x[mask] = values`` over the dimensions of x: one for all elements that the mask selects."""
    if not isinstance(values, Value):
        return values
    selected = dim - (len(x.size) - rank + 1)  # the dimension of the result that counts selected elements, from its end
    if len(values.size) < -selected:
        return values
    if values.size[selected] != 1:
        raise Unsupported("the number of values to write depends on the values of a mask")
    selected += len(values.size)
    values = values.squeeze(selected)
    for _ in range(rank):
        values = values.unsqueeze(selected)
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
    """A copy of x, changed in place."""
    out = b.copy(x, b.like_meta())
    change(_one_dim(out))
    return out


def _accumulated(b: Builder, x: Value, combine: Change) -> Value:
    """A copy of x, changed in fp32 (or in its integer dtype): several updates of an element are rounded once."""
    table = b.copy(x, b.empty(x.size, x.dtype if is_integer(x.dtype) else torch.float32))
    combine(_one_dim(table))
    return b.cast(table, x.dtype)


def _one_dim(x: Value) -> Value:
    """Tensors without dimensions are indexed as if they had one of size 1."""
    return x if x.size else replace(x, size=(1,), stride=(1,))


def _along(x: Value, dim: int, indices: Value) -> list[Value | None]:
    """The indices of ``x[:, ..., indices]``, with ``indices`` in dimension ``dim``."""
    return [None] * (dim % len(x.size)) + [_one_dim(indices)]


def _along_from_zero(b: Builder, x: Value, dim: int, indices: Value) -> list[Value | None]:
    return _along(x, dim, _from_zero(b, indices, x.size[dim]))


@lowers(aten.index_add.default)
def index_add(b: Builder, x: Value, dim: int, indices: Value, values: Value, *, alpha: Number = 1) -> Value:
    if alpha != 1:
        integer = is_integer(x.dtype)
        dtype = torch.int64 if integer else torch.float32
        values = b.pointwise("mul", values, alpha if integer else float(alpha), dtype=dtype)
    return _accumulated(b, x, lambda table: _scatter_slices(b, table, dim, indices, values, "scatter_add"))


def _scatter_slices(b: Builder, x: Value, dim: int, indices: Value, values: Value | Number, name: str) -> None:
    """Writes one slice across ``dim`` for each index."""
    if isinstance(values, Value):
        values = _one_dim(values)
    _put(b, x, _along_from_zero(b, x, dim, indices), values, name)


@lowers(aten.index_copy.default)
def index_copy(b: Builder, x: Value, dim: int, indices: Value, values: Value) -> Value:
    return _changed(b, x, lambda table: _scatter_slices(b, table, dim, indices, values, "scatter"))


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(b: Builder, x: Value, dim: int, indices: Value, value: Value | Number) -> Value:
    value = fitting(value, x.dtype)
    return _changed(b, x, lambda table: _put(b, table, _along(table, dim, indices), value, "scatter"))


@lowers(aten.gather.default)
def gather(b: Builder, x: Value, dim: int, indices: Value, *, sparse_grad: bool = False) -> Value:
    size, x, indices = indices.size, _indexable(b, _one_dim(x)), _one_dim(indices)
    dim %= len(x.size)
    strides = tuple(0 if d == dim else s for d, s in enumerate(x.stride))
    indices = _from_zero(b, indices, x.size[dim])
    out = b.gather(Access(x.buffer, strides, x.offset), indices.size, [(indices, x.size[dim], x.stride[dim])], x.dtype)
    return out if size else out.squeeze(0)


@lowers(aten.index_select.default)
def index_select(b: Builder, x: Value, dim: int, indices: Value) -> Value:
    if len(indices.size) > 1:
        raise Unsupported("the index has more than one dimension")  # the fallback raises PyTorch's own error
    table = _one_dim(x)
    out = index(b, table, _along_from_zero(b, table, dim, indices))
    return out if x.size else out.squeeze(0)


@lowers(aten.take.default)
def take(b: Builder, x: Value, indices: Value) -> Value:
    return index(b, _flat(b, x), [indices])


def _flat(b: Builder, x: Value) -> Value:
    return viewed(b.contiguous(x), aten.view.default, [-1])


@lowers(aten.put.default)
def put(b: Builder, x: Value, indices: Value, values: Value, accumulate: bool = False) -> Value:
    indices, values = _flat(b, indices), _flat(b, values)

    def change(table: Value) -> None:
        flat = b.copy(_flat(b, table))
        _put(b, flat, [indices], values, "scatter_add" if accumulate else "scatter")
        b.copy(viewed(flat, aten.view.default, table.size), table)

    return _accumulated(b, x, change) if accumulate else _changed(b, x, change)


def _scatter_elements(b: Builder, x: Value, dim: int, indices: Value, values: Value | Number, name: str) -> None:
    """Writes one element for each index, which is its position along ``dim``."""
    indices, dim = _one_dim(indices), dim % len(x.size)
    strides = tuple(0 if d == dim else s for d, s in enumerate(x.stride))
    if isinstance(values, Value):
        values = _one_dim(values)
        for d, n in enumerate(indices.size):
            values = values.narrow(d, 0, n)
    indices = _from_zero(b, indices, x.size[dim])
    b.scatter(name, Access(x.buffer, strides, x.offset), indices.size, [(indices, x.size[dim], x.stride[dim])], values)


@lowers(aten.scatter.src, aten.scatter.value)
def scatter(b: Builder, x: Value, dim: int, indices: Value, values: Value | Number) -> Value:
    values = fitting(values, x.dtype)
    return _changed(b, x, lambda table: _scatter_elements(b, table, dim, indices, values, "scatter"))


@lowers(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with(b: Builder, x: Value, dim: int, indices: Value, values: Value | Number, *, reduce: str) -> Value:
    name = {"add": "scatter_add", "multiply": "scatter_mul"}[reduce]
    return _accumulated(b, x, lambda table: _scatter_elements(b, table, dim, indices, values, name))


@lowers(aten.scatter_add.default)
def scatter_add(b: Builder, x: Value, dim: int, indices: Value, values: Value) -> Value:
    return _accumulated(b, x, lambda table: _scatter_elements(b, table, dim, indices, values, "scatter_add"))


# reduce= of scatter_reduce -> the scatter op, and its neutral element.
_REDUCTIONS = {
    "sum": ("scatter_add", 0.0),
    "mean": ("scatter_add", 0.0),
    "prod": ("scatter_mul", 1.0),
    "amax": ("scatter_amax", -inf),
    "amin": ("scatter_amin", inf),
}

# _scatter_elements or _scatter_slices: the table, the dimension, indices, values, and the scatter op.
Write = Callable[[Builder, Value, int, Value, Value | Number, str], None]


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    b: Builder, x: Value, dim: int, indices: Value, values: Value, reduce: str, *, include_self: bool = True
) -> Value:
    return _reduced(b, x, dim, indices, values, reduce, include_self, _scatter_elements)


@lowers(aten.index_reduce.default)
def index_reduce(
    b: Builder, x: Value, dim: int, indices: Value, values: Value, reduce: str, *, include_self: bool = True
) -> Value:
    return _reduced(b, x, dim, indices, values, reduce, include_self, _scatter_slices)


def _reduced(
    b: Builder,
    x: Value,
    dim: int,
    indices: Value,
    values: Value,
    reduce: str,
    include_self: bool,
    write: Write,
) -> Value:
    name, neutral = _REDUCTIONS[reduce]
    if x.dtype == torch.bool and (reduce == "mean" or write is _scatter_slices):
        raise Unsupported(f"{reduce} is not defined for bool")  # the fallback raises PyTorch's own error

    def combine(table: Value) -> None:
        if not include_self:  # elements that an index names start from the neutral element
            start = neutral if isfinite(neutral) or not is_integer(table.dtype) else _limit(table.dtype, neutral)
            write(b, table, dim, indices, start, "scatter")
        write(b, table, dim, indices, values, name)
        if reduce == "mean":
            _divide_by_count(b, table, dim, indices, include_self, write)

    return _accumulated(b, x, combine)


def _limit(dtype: torch.dtype, towards: float) -> int:
    """The smallest or largest integer that the card stores for a dtype."""
    limits = torch.iinfo(torch.int32 if dtype == torch.int64 else dtype)
    return limits.max if towards > 0 else limits.min


def _divide_by_count(b: Builder, table: Value, dim: int, indices: Value, include_self: bool, write: Write) -> None:
    integer = is_integer(table.dtype)
    count = b.full(table.size, int(include_self), torch.int64 if integer else torch.float32)
    write(b, count, dim, indices, 1, "scatter_add")
    if not include_self:
        count = b.pointwise("maximum", count, 1 if integer else 1.0, dtype=count.dtype)
    b.pointwise("floor_divide" if integer else "div", table, count, dtype=table.dtype, out=table)


@lowers(aten.masked_scatter.default)
def masked_scatter(b: Builder, x: Value, mask: Value, source: Value) -> Value:
    """The n-th element that the mask selects takes the n-th value; too few values are an index out of range."""
    if mask.dtype != torch.bool or not source.numel:
        # The fallback raises PyTorch's own error.
        raise Unsupported("masked_scatter needs a bool mask and at least one value")
    size = broadcast([x.size, mask.size])
    selected = _flat(b, mask.expand(size))
    count = b.along("cumsum", selected, 0, torch.int64)
    nth = b.pointwise("where", selected, b.pointwise("sub", count, 1, dtype=torch.int64), 0, dtype=torch.int64)
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
        frequency = index(b, count, [indices])
        gradient = b.pointwise("div", gradient, frequency.unsqueeze(len(frequency.size)), dtype=torch.float32)
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
