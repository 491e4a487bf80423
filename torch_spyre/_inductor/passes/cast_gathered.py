"""A table that is cast to be gathered from is gathered from as it is, and what is gathered is cast.

``table.to(float16)[rows]`` then takes as long as the rows do, however large the table is. A cast is one rounding of
each element, before a gather or behind it: bits stay the same.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import prod

from ..loop_ir import Access, Kernel, LoopOp, contiguous
from ..loop_ir.affine import composed_table, dims_between

CASTS = ("copy", "to_real", "to_int32", "to_integer")


def cast_gathered(kernel: Kernel) -> None:
    """After: no cast of a whole table that only gathers read, and that has more elements than they take."""
    written: dict[str, list[int]] = defaultdict(list)
    readers: dict[str, list[int]] = defaultdict(list)
    for at, op in enumerate(kernel.ops):
        written[op.out.buffer].append(at)
        for name in op.reads():
            readers[name].append(at)
    changed: dict[int, list[LoopOp]] = {}
    for at, cast in enumerate(kernel.ops):
        users = readers[cast.out.buffer]
        if len(written[cast.out.buffer]) != 1 or not users or not _is_cast_of_table(kernel, cast):
            continue
        gathers = [kernel.ops[i] for i in users]
        source = cast.ins[0]
        assert isinstance(source, Access)
        rewritten_later = any(at < i <= users[-1] for i in written[source.buffer])
        if rewritten_later or sum(prod(op.sizes) for op in gathers) >= prod(cast.sizes):
            continue
        parts = [_gathered(kernel, op, cast, source) for op in gathers]
        if all(part is not None for part in parts):
            changed |= {i: part for i, part in zip(users, parts, strict=True) if part is not None}
            changed[at] = []
    if changed:
        kernel.ops = [op for at, each in enumerate(kernel.ops) for op in changed.get(at, [each])]


def _is_cast_of_table(kernel: Kernel, op: LoopOp) -> bool:
    source, target = op.ins[0] if op.name in CASTS else None, kernel.buffers[op.out.buffer]
    if not isinstance(source, Access) or target.kind != "internal" or op.out.offset:
        return False
    return prod(op.sizes) == prod(target.size) and kernel.buffers[source.buffer].dtype != target.dtype


def _gathered(kernel: Kernel, op: LoopOp, cast: LoopOp, source: Access) -> list[LoopOp] | None:
    """A gather from the table as it is, and the cast of what was gathered; None where that does not fit."""
    name = cast.out.buffer
    if not op.row.is_gather or any(isinstance(each, Access) and each.buffer == name for each in op.ins[1:]):
        return None
    found = composed_table(op, 0, dims_between(cast.sizes, cast.out, source), source)
    if found is None:
        return None
    gather, moved = found
    buffer = kernel.internal(kernel.buffers[source.buffer].dtype, op.sizes)
    between = Access(buffer.name, contiguous(op.sizes))
    return [
        replace(gather, ins=(moved, *op.ins[1:]), out=between, checked=False),
        replace(cast, sizes=op.sizes, out=op.out, ins=(between,), source=op.source),
    ]
