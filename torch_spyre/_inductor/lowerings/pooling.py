"""Pooling: folds over windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from ..loop_ir import contiguous
from ..loop_ir.builder import Builder, Number, Unsupported, Value, is_integer
from .indexing import index
from .registry import lowers
from .windows import Windows, least

aten = torch.ops.aten


# --- averages


@lowers(aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
def avg_pool(
    b: Builder,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    rank = {aten.avg_pool1d.default: 1, aten.avg_pool2d.default: 2}.get(b.op, 3)
    windows = Windows.of(b.meta.shape[-rank:], kernel, stride, padding)
    count = divisor_override or _counts(b, x, windows, count_include_pad)
    return _average(b, windows.copy(b, x, 0), rank, count)


def _average(b: Builder, windows: Value, rank: int, count: Value | Number) -> Value:
    """The sum over the last ``rank`` dimensions, divided by ``count``; integers stay integers."""
    dtype = b.meta.dtype
    dims = range(len(windows.size) - rank, len(windows.size))
    total = b.total("sum", windows, dims, False, torch.int64 if is_integer(dtype) else torch.float32, of=windows.dtype)
    return b.pointwise("trunc_divide" if is_integer(dtype) else "div", total, count, dtype=dtype)


def _counts(b: Builder, x: Value, windows: Windows, with_padding: bool) -> Value | Number:
    """The divisor of an average: the number of elements of each window, as one number if all windows have the same."""
    rank, per_dim = len(windows.out), []
    sizes = zip(x.size[-rank:], windows.out, windows.kernel, windows.stride, windows.padding, strict=True)
    for n, out, kernel, stride, padding in sizes:
        starts = [i * stride - padding for i in range(out)]
        if with_padding:  # without what ceil_mode adds beyond the padding
            counts = [min(start + kernel, n + padding) - start for start in starts]
        else:
            counts = [min(start + kernel, n) - max(start, 0) for start in starts]
        per_dim.append(counts)
    if all(len(set(counts)) == 1 for counts in per_dim):
        return prod(counts[0] for counts in per_dim)
    product: Value | None = None
    for dim, counts in enumerate(per_dim):
        row = _constant(b, counts)
        for _ in range(rank - 1 - dim):
            row = row.unsqueeze(-1)
        product = row if product is None else b.pointwise("mul", product, row, dtype=torch.int64)
    assert product is not None
    return product


def _constant(b: Builder, numbers: Sequence[int]) -> Value:
    """A tensor of these numbers, with one fill for each run of equal ones."""
    out = b.empty([len(numbers)], torch.int64)
    start = 0
    while start < len(numbers):
        end = start
        while end < len(numbers) and numbers[end] == numbers[start]:
            end += 1
        b.fill(numbers[start], out.narrow(0, start, end - start))
        start = end
    return out


# --- maxima


@lowers(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool_with_indices(
    b: Builder,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    rank = 2 if b.op is aten.max_pool2d_with_indices.default else 3
    geometry = Windows.of(b.meta[0].shape[-rank:], kernel, stride, padding, dilation)
    windows = geometry.copy(b, x, least(x.dtype))
    dims = list(range(len(windows.size) - rank, len(windows.size)))
    strides = contiguous(x.size[-rank:])
    starts = [
        b.iota([n], -padding, [stride], torch.int64)
        for n, stride, padding in zip(geometry.out, geometry.stride, geometry.padding, strict=True)
    ]
    # If all elements are the neutral one, PyTorch's index is the first that is in the input, not in the padding.
    starts_inside = [
        b.pointwise(
            "where",
            b.pointwise("lt", start, 0, dtype=torch.bool),
            b.pointwise("remainder", start, dilation, dtype=torch.int64),
            start,
            dtype=torch.int64,
        )
        for start, dilation in zip(starts, geometry.dilation, strict=True)
    ]
    position = b.position("argmax", windows, dims, False)
    steps = [s * n for s, n in zip(strides, geometry.dilation, strict=True)]
    offsets = _offsets_in_input(b, position, geometry.kernel, steps)
    indices = b.pointwise("add", offsets, _flat_positions(b, starts, strides), dtype=torch.int64)
    first = b.pointwise("eq", position, 0, dtype=torch.bool)
    indices = b.pointwise("where", first, _flat_positions(b, starts_inside, strides), indices, dtype=torch.int64)
    return b.reduce("amax", windows, dims, False, x.dtype), indices


def _flat_positions(b: Builder, rows: Sequence[Value], strides: Sequence[int]) -> Value:
    """Positions along each dimension, combined to positions in the flattened input."""
    total: Value | None = None
    for dim, (row, stride) in enumerate(zip(rows, strides, strict=True)):
        scaled = row if stride == 1 else b.pointwise("mul", row, stride, dtype=torch.int64)
        for _ in range(len(rows) - 1 - dim):
            scaled = scaled.unsqueeze(-1)
        total = scaled if total is None else b.pointwise("add", total, scaled, dtype=torch.int64)
    assert total is not None
    return total


def _offsets_in_input(b: Builder, position: Value, kernel: Sequence[int], steps: Sequence[int]) -> Value:
    """Row-major positions within a window as offsets in the flattened input from the window's first element."""
    if all(n == 1 for n in kernel[:-1]):
        return b.pointwise("mul", position, steps[-1], dtype=torch.int64)
    rows = b.pointwise("floor_divide", position, kernel[-1], dtype=torch.int64)
    row_starts = b.pointwise("mul", rows, kernel[-1], dtype=torch.int64)
    in_row = b.pointwise("sub", position, row_starts, dtype=torch.int64)
    in_row = b.pointwise("mul", in_row, steps[-1], dtype=torch.int64)
    return b.pointwise("add", in_row, _offsets_in_input(b, rows, kernel[:-1], steps[:-1]), dtype=torch.int64)


# --- adaptive pools: the number of windows is given


def _equal_windows(x: Value, out: Sequence[int]) -> Windows | None:
    """Windows of equal size; None if their number does not divide the input's size."""
    size = x.size[-len(out) :]
    if any(n % m for n, m in zip(size, out, strict=True)):
        return None
    return Windows.of(out, [n // m for n, m in zip(size, out, strict=True)], [], [0])


def _bounds(b: Builder, n: int, out: int) -> tuple[Value, Value]:
    """The first positions of ``out`` windows over ``n`` elements, and the positions after their last."""
    starts = b.pointwise("floor_divide", b.iota([out], 0, [n], torch.int64), out, dtype=torch.int64)
    ends = b.pointwise("floor_divide", b.iota([out], n + out - 1, [n], torch.int64), out, dtype=torch.int64)
    return starts, ends


def _longest(n: int, out: int) -> int:
    return max(-(-(i + 1) * n // out) - i * n // out for i in range(out))


def _unequal_windows(b: Builder, x: Value, out: Sequence[int]) -> tuple[Value, Value, list[Value]]:
    """Windows ``[..., *out, *kernel]``, a mask of their valid elements, and their first positions per dimension.

    Windows that are shorter than the kernel repeat their last element, which the mask leaves out.
    """
    rank = len(out)
    starts, indices, valid = [], [], None
    kernel = [_longest(n, m) for n, m in zip(x.size[-rank:], out, strict=True)]
    for dim, (n, m) in enumerate(zip(x.size[-rank:], out, strict=True)):
        start, end = _bounds(b, n, m)
        in_window = _as_dim(b.iota([kernel[dim]], 0, [1], torch.int64), rank + dim, 2 * rank)
        position = b.pointwise("add", _as_dim(start, dim, 2 * rank), in_window, dtype=torch.int64)
        last = b.pointwise("sub", _as_dim(end, dim, 2 * rank), 1, dtype=torch.int64)
        before_end = b.pointwise("le", position, last, dtype=torch.bool)
        valid = before_end if valid is None else b.pointwise("logical_and", valid, before_end, dtype=torch.bool)
        starts.append(start)
        indices.append(b.pointwise("minimum", position, last, dtype=torch.int64))
    assert valid is not None
    # The windows of a row are the innermost dimension, as in Windows.copy.
    order = [*range(rank - 1), *range(rank, 2 * rank), rank - 1]
    inverse = [order.index(i) for i in range(2 * rank)]
    lead = len(x.size) - rank
    gathered = index(b, x, [*([None] * lead), *(along.permute(order) for along in indices)])
    return gathered.permute([*range(lead), *(lead + i for i in inverse)]), valid, starts


def _as_dim(row: Value, dim: int, rank: int) -> Value:
    """A row as dimension ``dim`` of ``rank`` dimensions, the others of size 1."""
    for i in range(rank):
        if i != dim:
            row = row.unsqueeze(i)
    return row


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(b: Builder, x: Value, out: Sequence[int]) -> Value:
    rank = 2 if b.op is aten._adaptive_avg_pool2d.default else 3
    _refuse_empty(x)
    equal = _equal_windows(x, out)
    if equal is not None:
        return _average(b, equal.copy(b, x, 0), rank, prod(equal.kernel))
    windows, valid, _ = _unequal_windows(b, x, out)
    counts = b.reduce("sum", b.cast(valid, torch.float32), range(rank, 2 * rank), False, torch.float32)
    return _average(b, b.pointwise("where", valid, windows, 0.0, dtype=x.dtype), rank, counts)


@lowers(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(b: Builder, x: Value, out: Sequence[int]) -> tuple[Value, Value]:
    rank = 2 if b.op is aten.adaptive_max_pool2d.default else 3
    _refuse_empty(x)
    equal = _equal_windows(x, out)
    if equal is not None:
        windows = equal.copy(b, x, 0)
        starts = [b.iota([n], 0, [step], torch.int64) for n, step in zip(out, equal.kernel, strict=True)]
    else:
        windows, _, starts = _unequal_windows(b, x, out)
    dims = list(range(len(windows.size) - rank, len(windows.size)))
    strides = contiguous(x.size[-rank:])
    offsets = _offsets_in_input(b, b.position("argmax", windows, dims, False), windows.size[-rank:], strides)
    indices = b.pointwise("add", offsets, _flat_positions(b, starts, strides), dtype=torch.int64)
    return b.reduce("amax", windows, dims, False, x.dtype), indices


def _refuse_empty(x: Value) -> None:
    if not x.numel:
        raise Unsupported("the input has no elements")
