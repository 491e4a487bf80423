"""Ops that assemble tensors: concatenation, padding, repetition, and the scatter variants of views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..loop_ir.builder import Builder, Number, Unsupported, Value, fitting
from .registry import lowers
from .views import viewed

aten = torch.ops.aten


@lowers(aten.cat.default)
def cat(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    out = b.like_meta()
    if not out.size:
        raise Unsupported("cat of tensors without dimensions")  # the fallback raises PyTorch's own error
    tensors = [t for t in tensors if t.size != (0,) or len(out.size) == 1]
    start = 0
    for tensor in tensors:
        length = tensor.size[dim]
        if length:
            b.copy(tensor, out.narrow(dim % len(out.size), start, length))
        start += length
    return out


@lowers(aten.stack.default)
def stack(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    return cat(b, [t.unsqueeze(dim) for t in tensors], dim)


def pad(b: Builder, x: Value, padding: Sequence[int], value: Number) -> Value:
    """``padding`` is in PyTorch's order: before and after the last dimension, then those of the dimension before it."""
    rank, size, inner = len(x.size), list(x.size), x
    starts = [0] * rank
    for i in range(len(padding) // 2):
        dim, before, after = rank - 1 - i, padding[2 * i], padding[2 * i + 1]
        size[dim] += before + after
        cut = max(-before, 0), max(-after, 0)
        inner = inner.narrow(dim, cut[0], inner.size[dim] - sum(cut))
        starts[dim] = max(before, 0)
    out = b.full(size, value, x.dtype)
    target = out
    for dim in range(rank):
        target = target.narrow(dim, starts[dim], inner.size[dim])
    if inner.numel:
        b.copy(inner, target)
    return out


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(b: Builder, x: Value, padding: Sequence[int], value: Number = 0) -> Value:
    return pad(b, x, padding, fitting(value, x.dtype))


def _scattered(b: Builder, x: Value, source: Value, op: Any, *args: Any) -> Value:
    """A copy of x in which the view that ``op`` takes holds ``source``."""
    out = b.copy(x, b.like_meta())
    b.copy(source, viewed(out, op, *args))
    return out


@lowers(aten.slice_scatter.default)
def slice_scatter(
    b: Builder, x: Value, source: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    return _scattered(b, x, source, aten.slice.Tensor, dim, start, end, step)


@lowers(aten.select_scatter.default)
def select_scatter(b: Builder, x: Value, source: Value, dim: int, index: int) -> Value:
    return _scattered(b, x, source, aten.select.int, dim, index)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(b: Builder, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return _scattered(b, x, source, aten.diagonal.default, offset, dim1, dim2)


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    b: Builder,
    x: Value,
    source: Value,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Value:
    out = b.copy(x, b.like_meta())
    if tuple(out.stride) != b.meta.stride():
        raise Unsupported("as_strided_scatter into a tensor whose strides leave gaps")
    b.copy(source, replace(out, size=tuple(size), stride=tuple(stride), offset=storage_offset or 0))
    return out


@lowers(aten.repeat.default)
def repeat(b: Builder, x: Value, repeats: Sequence[int]) -> Value:
    while len(x.size) < len(repeats):
        x = x.unsqueeze(0)
    # Each dimension becomes two, (repeats, size); the first has stride 0 and reads the same elements again.
    size = [n for pair in zip(repeats, x.size, strict=True) for n in pair]
    tiled = x
    for i in reversed(range(len(repeats))):
        tiled = tiled.unsqueeze(i)
    out = b.copy(tiled.expand(size))
    return viewed(out, aten.view.default, [r * n for r, n in zip(repeats, x.size, strict=True)])


@lowers(aten.roll.default)
def roll(b: Builder, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    if not dims:
        flat = viewed(b.contiguous(x), aten.view.default, [-1])
        return viewed(roll(b, flat, shifts, [0]), aten.view.default, x.size)
    for shift, dim in zip(shifts, dims, strict=True):
        dim %= len(x.size)
        n = x.size[dim]
        if n == 0 or shift % n == 0:
            continue
        out, shift = b.empty(x.size, x.dtype), shift % n
        b.copy(x.narrow(dim, n - shift, shift), out.narrow(dim, 0, shift))
        b.copy(x.narrow(dim, 0, n - shift), out.narrow(dim, shift, n - shift))
        x = out
    return b.copy(x)
