"""Whether an op reads what it writes."""

from __future__ import annotations

from .ir import Access, LoopOp


def overlaps(op: LoopOp) -> bool:
    """Whether an op reads its output buffer otherwise than point by point, each point exactly where it writes it."""
    same = [a for a in op.ins if isinstance(a, Access) and a.buffer == op.out.buffer]
    if not same:
        return False
    if not op.row.is_pointwise:
        return True
    return any(a.offset != op.out.offset or moving(a, op) != moving(op.out, op) for a in same)


def moving(access: Access, op: LoopOp) -> list[int]:
    """The strides of an access along the loops that have more than one point."""
    return [stride for stride, size in zip(access.strides, op.sizes, strict=True) if size > 1]
