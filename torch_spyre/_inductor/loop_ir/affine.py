"""An access to a copy as an access to what it is a copy of, or the other way round."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from .ir import Access, LoopOp

Dims = list[tuple[int, int, int]]  # stride here, size, stride there; the outermost first


def dims_between(sizes: tuple[int, ...], here: Access, there: Access) -> Dims:
    """The loops of a copy, as dimensions of both sides; those that continue each other on both are one."""
    dims: Dims = []
    loops = ((s, n, t) for n, s, t in zip(sizes, here.strides, there.strides, strict=True) if n > 1)
    for stride, n, other in sorted(loops, reverse=True):
        outer = dims[-1] if dims else (0, 0, 0)
        if dims and (outer[0], outer[2]) == (n * stride, n * other):
            dims[-1] = (stride, outer[1] * n, other)
        else:
            dims.append((stride, n, other))
    return dims


def composed(access: Access, sizes: tuple[int, ...], dims: Dims, there: Access) -> Access | None:
    """An access over ``sizes`` to one side of a copy as one to the other side; None where that is not affine."""
    offset, rest = there.offset, access.offset
    reached: dict[int, int] = defaultdict(int)  # by dimension: the last index that is touched
    for stride, _, other in dims:
        if stride <= 0:
            return None
        reached[stride], rest = divmod(rest, stride)
        offset += reached[stride] * other
    if rest:
        return None
    strides = []
    for n, stride in zip(sizes, access.strides, strict=True):
        if n == 1 or stride == 0:
            strides.append(0)
            continue
        dim = next((each for each in dims if stride % each[0] == 0), None)
        if dim is None or stride < 0:
            return None
        reached[dim[0]] += (n - 1) * (stride // dim[0])
        strides.append(stride // dim[0] * dim[2])
    if any(reached[stride] >= n for stride, n, _ in dims):
        return None
    return Access(there.buffer, tuple(strides), offset)


def composed_table(op: LoopOp, position: int, dims: Dims, there: Access) -> tuple[LoopOp, Access] | None:
    """Operand ``position`` of an op, which indices move, on the other side of a copy: the op with indices that lead
    there, and the access. None where one of the two is not affine."""
    table, jumps = [*op.ins, op.out][position], op.jumps(position, len(op.ins))
    assert isinstance(table, Access)
    strides = (*table.strides, *(index.stride for index in jumps))
    sizes = (*op.sizes, *(index.extent for index in jumps))
    found = composed(replace(table, strides=strides), sizes, dims, there)
    if found is None:
        return None
    moved = iter(found.strides[len(op.sizes) :])
    mine = {id(index) for index in jumps}
    indirect = tuple(replace(each, stride=next(moved)) if id(each) in mine else each for each in op.indirect)
    return replace(op, indirect=indirect), replace(found, strides=found.strides[: len(op.sizes)])
