"""Pools: folds over windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

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
    """The sum over the last dimensions by a number for each; of integers, an integer."""
    dtype = b.meta.dtype
    dims = range(len(windows.size) - rank, len(windows.size))
    total = b.total("sum", windows, dims, False, torch.int64 if is_integer(dtype) else torch.float32, of=windows.dtype)
    return b.pointwise("trunc_divide" if is_integer(dtype) else "div", total, count, dtype=dtype)


def _counts(b: Builder, x: Value, windows: Windows, with_padding: bool) -> Value | Number:
    """How many places of each window count: one number, or one for each window."""
    rank, found = len(windows.out), []
    sizes = zip(x.size[-rank:], windows.out, windows.kernel, windows.stride, windows.padding, strict=True)
    for n, out, kernel, stride, padding in sizes:
        starts = [i * stride - padding for i in range(out)]
        if with_padding:  # but not what ceil_mode adds behind it
            counts = [min(start + kernel, n + padding) - start for start in starts]
        else:
            counts = [min(start + kernel, n) - max(start, 0) for start in starts]
        found.append(counts)
    if all(len(set(counts)) == 1 for counts in found):
        return prod(counts[0] for counts in found)
    product: Value | None = None
    for dim, counts in enumerate(found):
        row = _row(b, counts)
        for _ in range(rank - 1 - dim):
            row = row.unsqueeze(-1)
        product = row if product is None else b.pointwise("mul", product, row, dtype=torch.int64)
    assert product is not None
    return product


def _row(b: Builder, numbers: Sequence[int]) -> Value:
    """A tensor of a few runs of numbers."""
    out = b.empty([len(numbers)], torch.int64)
    at = 0
    while at < len(numbers):
        end = at
        while end < len(numbers) and numbers[end] == numbers[at]:
            end += 1
        b.fill(numbers[at], out.narrow(0, at, end - at))
        at = end
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
    seen = Windows.of(b.meta[0].shape[-rank:], kernel, stride, padding, dilation)
    windows = seen.copy(b, x, least(x.dtype))
    dims = list(range(len(windows.size) - rank, len(windows.size)))
    steps = _steps(x.size[-rank:])
    starts = [
        b.iota([n], -padding, [stride], torch.int64)
        for n, stride, padding in zip(seen.out, seen.stride, seen.padding, strict=True)
    ]
    # A window of nothing but the least number begins at its first place inside of the input.
    inside = [
        b.pointwise(
            "where",
            b.pointwise("lt", start, 0, dtype=torch.bool),
            b.pointwise("remainder", start, dilation, dtype=torch.int64),
            start,
            dtype=torch.int64,
        )
        for start, dilation in zip(starts, seen.dilation, strict=True)
    ]
    place = b.position("argmax", windows, dims, False)
    moved = _moved(b, place, seen.kernel, [s * n for s, n in zip(steps, seen.dilation, strict=True)])
    at = b.pointwise("add", moved, _flat(b, starts, steps), dtype=torch.int64)
    first = b.pointwise("eq", place, 0, dtype=torch.bool)
    at = b.pointwise("where", first, _flat(b, inside, steps), at, dtype=torch.int64)
    return b.reduce("amax", windows, dims, False, x.dtype), at


def _steps(size: Sequence[int]) -> list[int]:
    return [prod(size[i + 1 :]) for i in range(len(size))]


def _flat(b: Builder, rows: Sequence[Value], steps: Sequence[int]) -> Value:
    """Positions along each dimension as positions in all of them."""
    total: Value | None = None
    for dim, (row, step) in enumerate(zip(rows, steps, strict=True)):
        scaled = row if step == 1 else b.pointwise("mul", row, step, dtype=torch.int64)
        for _ in range(len(rows) - 1 - dim):
            scaled = scaled.unsqueeze(-1)
        total = scaled if total is None else b.pointwise("add", total, scaled, dtype=torch.int64)
    assert total is not None
    return total


def _moved(b: Builder, place: Value, kernel: Sequence[int], steps: Sequence[int]) -> Value:
    """A place in a window, counted row by row, as a distance in the input from the window's begin."""
    if all(n == 1 for n in kernel[:-1]):
        return b.pointwise("mul", place, steps[-1], dtype=torch.int64)
    rows = b.pointwise("floor_divide", place, kernel[-1], dtype=torch.int64)
    whole = b.pointwise("mul", rows, kernel[-1], dtype=torch.int64)
    along = b.pointwise("sub", place, whole, dtype=torch.int64)
    along = b.pointwise("mul", along, steps[-1], dtype=torch.int64)
    return b.pointwise("add", along, _moved(b, rows, kernel[:-1], steps[:-1]), dtype=torch.int64)


# --- as many windows as are asked for


def _even(x: Value, out: Sequence[int]) -> Windows | None:
    """Windows that touch, where the input's length allows it."""
    size = x.size[-len(out) :]
    if any(n % m for n, m in zip(size, out, strict=True)):
        return None
    return Windows.of(out, [n // m for n, m in zip(size, out, strict=True)], [], [0])


def _bounds(b: Builder, n: int, out: int) -> tuple[Value, Value]:
    """Where each of ``out`` windows over ``n`` begins, and where it ends."""
    starts = b.pointwise("floor_divide", b.iota([out], 0, [n], torch.int64), out, dtype=torch.int64)
    ends = b.pointwise("floor_divide", b.iota([out], n + out - 1, [n], torch.int64), out, dtype=torch.int64)
    return starts, ends


def _longest(n: int, out: int) -> int:
    return max(-(-(i + 1) * n // out) - i * n // out for i in range(out))


def _uneven(b: Builder, x: Value, out: Sequence[int]) -> tuple[Value, Value, list[Value]]:
    """``[..., *out, *kernel]``, which of its places are in the window, and where windows begin.

    Shorter windows repeat their last element.
    """
    rank = len(out)
    starts, tables, valid = [], [], None
    kernel = [_longest(n, m) for n, m in zip(x.size[-rank:], out, strict=True)]
    for dim, (n, m) in enumerate(zip(x.size[-rank:], out, strict=True)):
        start, end = _bounds(b, n, m)
        place = _spread(b.iota([kernel[dim]], 0, [1], torch.int64), rank + dim, 2 * rank)
        at = b.pointwise("add", _spread(start, dim, 2 * rank), place, dtype=torch.int64)
        last = b.pointwise("sub", _spread(end, dim, 2 * rank), 1, dtype=torch.int64)
        here = b.pointwise("le", at, last, dtype=torch.bool)
        valid = here if valid is None else b.pointwise("logical_and", valid, here, dtype=torch.bool)
        starts.append(start)
        tables.append(b.pointwise("minimum", at, last, dtype=torch.int64))
    assert valid is not None
    # The windows of a row side by side, as windows.copy has them.
    order = [*range(rank - 1), *range(rank, 2 * rank), rank - 1]
    back = [order.index(i) for i in range(2 * rank)]
    lead = len(x.size) - rank
    gathered = index(b, x, [*([None] * lead), *(table.permute(order) for table in tables)])
    return gathered.permute([*range(lead), *(lead + i for i in back)]), valid, starts


def _spread(row: Value, dim: int, rank: int) -> Value:
    """A row along one of several dimensions."""
    for i in range(rank):
        if i != dim:
            row = row.unsqueeze(i)
    return row


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(b: Builder, x: Value, out: Sequence[int]) -> Value:
    rank = 2 if b.op is aten._adaptive_avg_pool2d.default else 3
    _refuse_empty(x)
    even = _even(x, out)
    if even is not None:
        return _average(b, even.copy(b, x, 0), rank, prod(even.kernel))
    windows, valid, _ = _uneven(b, x, out)
    counts = b.reduce("sum", b.cast(valid, torch.float32), range(rank, 2 * rank), False, torch.float32)
    return _average(b, b.pointwise("where", valid, windows, 0.0, dtype=x.dtype), rank, counts)


@lowers(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(b: Builder, x: Value, out: Sequence[int]) -> tuple[Value, Value]:
    rank = 2 if b.op is aten.adaptive_max_pool2d.default else 3
    _refuse_empty(x)
    even = _even(x, out)
    if even is not None:
        windows = even.copy(b, x, 0)
        starts = [b.iota([n], 0, [step], torch.int64) for n, step in zip(out, even.kernel, strict=True)]
    else:
        windows, _, starts = _uneven(b, x, out)
    dims = list(range(len(windows.size) - rank, len(windows.size)))
    steps = _steps(x.size[-rank:])
    moved = _moved(b, b.position("argmax", windows, dims, False), windows.size[-rank:], steps)
    at = b.pointwise("add", moved, _flat(b, starts, steps), dtype=torch.int64)
    return b.reduce("amax", windows, dims, False, x.dtype), at


def _refuse_empty(x: Value) -> None:
    if not x.numel:
        raise Unsupported("a pool over nothing")
