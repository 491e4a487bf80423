"""Which elements ops touch, and whether an op reads what it writes."""

from __future__ import annotations

from .ir import Access, Buffer, Indirect, LoopOp


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


def reached(access: Access, op: LoopOp, buffer: Buffer, jumps: tuple[Indirect, ...] = ()) -> list[range] | None:
    """The indices that an access may touch along each dimension of its buffer; None where it does not go along them."""
    dims = sorted(((s, n) for n, s in zip(buffer.size, buffer.stride, strict=True) if n > 1), reverse=True)
    loops = list(zip(access.strides, op.sizes, strict=True))
    loops += [(index.stride, index.extent) for index in jumps]
    rest, found = access.offset, []
    for stride, n in dims:
        first, rest = divmod(rest, stride)
        along = [(s, count) for s, count in loops if count > 1 and s and s % stride == 0]
        loops = [each for each in loops if each not in along]
        last = first + sum(s // stride * (count - 1) for s, count in along)
        if last >= n or first < 0:
            return None
        found.append(range(first, last + 1))
    return None if rest or any(s and count > 1 for s, count in loops) else found
