"""An index along merged dimensions becomes an index along each: block * 64 + slot is block and slot again.

A view that merges dimensions (``cache.view(-1, heads, head)``) has one where the card has several, which lie apart. An
index i of it is ``i // n`` of the outer and ``i % n`` of the inner one. Both round down, so an index that counts from
the end, or one out of range, stays one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..loop_ir import Access, Constant, Indirect, LoopOp
from .device_ir import Plan


@dataclass
class Split:
    made: list[LoopOp]  # that make the parts of the index
    op: LoopOp


def split_index(plan: Plan, op: LoopOp) -> Split | None:
    """The op with its first index that moves over several dimensions of the card in two parts; None if none does."""
    table = op.ins[0] if op.row.is_gather else op.out
    assert isinstance(table, Access)
    if op.tile_loops:
        return None
    for position, index in enumerate(op.indirect):
        inner = _inner_extent(plan, table, index)
        if inner:
            return _split(plan, op, position, inner)
    return None


def _inner_extent(plan: Plan, table: Access, index: Indirect) -> int:
    """How many steps of an index lead through the inner dimension, 0 where it stays inside one or does not fit."""
    units = sorted(level.unit for level in plan.placement(table.buffer).levels)
    lane = plan.layouts[table.buffer].stride_map[-1]
    pair = {lane, lane * plan.elements(table.buffer)}  # an index along the sticks moves through both as through one
    for unit in units:
        if unit <= index.stride or unit >= index.stride * index.extent or {unit, index.stride} == pair:
            continue
        steps, rest = divmod(unit, index.stride)
        begins = plan.offset(table) % unit < index.stride
        return steps if begins and not rest and index.extent % steps == 0 else 0
    return 0


def _split(plan: Plan, op: LoopOp, position: int, inner: int) -> Split:
    index = op.indirect[position]
    given = op.ins[index.operand]
    assert isinstance(given, Access)
    loops = [i for i, stride in enumerate(given.strides) if stride and op.sizes[i] > 1]
    sizes = tuple(op.sizes[i] for i in loops)
    over = replace(given, strides=tuple(given.strides[i] for i in loops))
    parts, made = [], []
    for name in ("floor_divide", "remainder"):
        buffer = plan.temporary(plan.kernel.buffers[given.buffer].dtype, sizes, tuple(range(len(sizes))))
        divisor = Constant(float(inner), torch.int64)
        out = Access(buffer.name, buffer.stride)
        made.append(LoopOp(name, sizes, out, (over, divisor), source=op.source, aten=op.aten))
        strides = [0] * len(op.sizes)
        for i, stride in zip(loops, buffer.stride, strict=True):
            strides[i] = stride
        parts.append(Access(buffer.name, tuple(strides)))
    outer = replace(index, extent=index.extent // inner, stride=index.stride * inner)
    indirect = [*op.indirect[:position], outer, replace(index, extent=inner), *op.indirect[position + 1 :]]
    ins = [*op.ins[: index.operand], *parts, *op.ins[index.operand + 1 :]]
    counted = tuple(replace(each, operand=i) for i, each in enumerate(indirect, 1))
    return Split(made, replace(op, ins=tuple(ins), indirect=counted))
