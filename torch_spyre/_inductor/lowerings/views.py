"""Views: another size, stride and offset on the same buffer, as PyTorch's own meta kernels compute them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..loop_ir import contiguous
from ..loop_ir.builder import Builder, Value
from .registry import lowers

aten = torch.ops.aten


def viewed(x: Value, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The Value, or the list of Values, that a view op returns. Raises PyTorch's own error if no view is possible."""
    meta = torch.empty_strided(x.size, x.stride, device="meta", dtype=x.dtype)
    views = op(meta, *args, **kwargs)
    if isinstance(views, torch.Tensor):
        return _value(x, views)
    return [_value(x, view) for view in views]


def _value(x: Value, view: torch.Tensor) -> Value:
    return replace(x, size=tuple(view.shape), stride=tuple(view.stride()), offset=x.offset + int(view.storage_offset()))


_VIEWS = [
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.expand.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unbind.int,
    aten.diagonal.default,
    aten.unfold.default,
    aten.alias.default,
    aten.detach.default,
    aten.movedim.int,
    aten.narrow.default,
    aten.chunk.default,
    aten.tensor_split.sections,
    aten.swapaxes.default,
]


def _view_lowering(op: torch._ops.OpOverload) -> Callable[..., Any]:
    return lambda b, x, *args, **kwargs: viewed(x, op, *args, **kwargs)


for _op in _VIEWS:
    lowers(_op)(_view_lowering(_op))


@lowers(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.view_copy.default,
)
def view(b: Builder, x: Value, size: Sequence[int], *_: Any) -> Value:
    """A view if the strides allow one, otherwise a view of a contiguous copy."""
    size = list(size)
    if -1 in size:
        rest = 1
        for n in size:
            rest *= n if n >= 0 else 1
        size[size.index(-1)] = x.numel // rest if rest else 0
    if 0 in size or 0 in x.size:
        return replace(x, size=tuple(size), stride=contiguous(size))
    stride = _strides_as(x, size)
    if stride is None:
        return replace(b.copy(x), size=tuple(size), stride=contiguous(size))
    return replace(x, size=tuple(size), stride=stride)


def _strides_as(x: Value, size: Sequence[int]) -> tuple[int, ...] | None:
    """The strides of ``x`` viewed in another size; None if no strides describe that view."""
    dims = [(n, s) for n, s in zip(x.size, x.stride, strict=True) if n != 1]
    strides: list[int] = []
    wanted = list(size)
    while dims:
        # Dimensions that are contiguous with each other are merged into one.
        n, step = dims.pop()
        while dims and dims[-1][1] == n * step:
            n *= dims.pop()[0]
        while n > 1 or (wanted and wanted[-1] == 1):
            if not wanted or n % wanted[-1]:
                return None
            strides.append(step)
            step, n = step * wanted[-1], n // wanted.pop()
    strides += [1] * len(wanted)
    return tuple(reversed(strides))


@lowers(aten.as_strided.default)
def as_strided(
    b: Builder, x: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Value:
    """The offset counts from the start of the storage; a tensor that is made inside the kernel starts there."""
    if b.root is not None:
        return replace(b.root, size=tuple(size), stride=tuple(stride), offset=storage_offset or 0)
    offset = x.offset if storage_offset is None else storage_offset - b.storage_offset(x)
    return replace(x, size=tuple(size), stride=tuple(stride), offset=offset)


@lowers(aten.clone.default, aten.contiguous.default, aten.lift_fresh_copy.default, torch.ops.prims.clone.default)
def clone(b: Builder, x: Value, *, memory_format: torch.memory_format | None = None) -> Value:
    """The value itself. The partition copies it if it leaves the kernel, or if one of the two is changed in place."""
    return x


@lowers(aten.copy.default)
def copy(b: Builder, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return b.copy(source, b.like_meta())


@lowers(aten.copy_.default)
def copy_(b: Builder, x: Value, source: Value, non_blocking: bool = False) -> Value:
    b.copy(source, x)
    return x


@lowers(aten.fill_.Scalar)
def fill_(b: Builder, x: Value, value: float) -> Value:
    return b.fill(value, x)


@lowers(torch.ops.prims.convert_element_type.default)
def convert_element_type(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    return b.cast(x, dtype)


@lowers(aten._to_copy.default)
def to_copy(
    b: Builder,
    x: Value,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Value:
    return b.cast(x, dtype or x.dtype)
