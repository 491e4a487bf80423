"""Factory functions: tensors that the card fills."""

from __future__ import annotations

from typing import Any

import torch

from ..loop_ir.builder import Builder, Number, Unsupported, Value
from .registry import lowers

aten, prims = torch.ops.aten, torch.ops.prims


@lowers(aten.full.default, aten.full_like.default, aten.new_full.default)
def full(b: Builder, first: Any, *args: Any, **kwargs: Any) -> Value:
    value: Any = kwargs.get("fill_value", args[-1] if args else None)
    if isinstance(value, Value):
        return b.copy(value, b.like_meta())
    return b.fill(value, b.like_meta())


@lowers(aten.scalar_tensor.default)
def scalar_tensor(b: Builder, value: Number, **kwargs: Any) -> Value:
    return b.fill(value, b.like_meta())


@lowers(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
def zeros(b: Builder, *args: Any, **kwargs: Any) -> Value:
    return b.fill(0, b.like_meta())


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(b: Builder, *args: Any, **kwargs: Any) -> Value:
    return b.fill(1, b.like_meta())


@lowers(
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.empty_strided.default,
    aten.empty_permuted.default,
)
def empty(b: Builder, *args: Any, **kwargs: Any) -> Value:
    if _overlaps_itself(b.meta):
        raise Unsupported("several elements lie in one place: there is nothing to fill point by point")
    # Strict mode refuses reads of memory that was never written, copies included: the tensor is filled with zeros.
    return b.fill(0, b.like_meta())


def _overlaps_itself(meta: torch.Tensor) -> bool:
    """Whether elements share a place, or may: each stride has to step over all that the smaller ones reach."""
    reached = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(meta.stride(), meta.shape, strict=True) if size > 1
    ):
        if stride < reached:
            return True
        reached += stride * max(size - 1, 0)
    return False


@lowers(prims.iota.default)
def iota(
    b: Builder, length: int, *, start: int, step: int, dtype: torch.dtype, device: Any, requires_grad: bool
) -> Value:
    return b.iota([length], start, [step], dtype)


@lowers(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(b: Builder, *args: Number, **kwargs: Any) -> Value:
    start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    if all(isinstance(n, int) for n in (start, end, step)):
        return b.iota(b.meta.shape, int(start), [int(step)], b.meta.dtype)
    counter = b.iota(b.meta.shape, 0, [1], torch.float32)
    return b.pointwise("fma", counter, float(step), float(start), dtype=b.meta.dtype)


@lowers(aten.logspace.default)
def logspace(b: Builder, start: Number, end: Number, steps: int, base: Number = 10.0, **kwargs: Any) -> Value:
    """The first half of the exponents is counted from the start, the second from the end: both ends are exact."""
    if steps < 2:
        return b.fill(float(base) ** start, b.like_meta())
    step, fp32 = (end - start) / (steps - 1), torch.float32
    counter = b.iota([steps], 0, [1], fp32)
    from_start = b.pointwise("fma", counter, step, float(start), dtype=fp32)
    to_last = b.pointwise("sub", counter, float(steps - 1), dtype=fp32)
    from_end = b.pointwise("fma", to_last, step, float(end), dtype=fp32)
    first_half = b.pointwise("lt", counter, float(steps // 2), dtype=torch.bool)
    exponents = b.pointwise("where", first_half, from_start, from_end, dtype=fp32)
    return b.pointwise("pow", float(base), exponents, dtype=b.meta.dtype)
