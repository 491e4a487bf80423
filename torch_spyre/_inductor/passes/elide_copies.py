"""A value that is only made to be copied is made where the copy would have put it.

That is how ``cat`` of computed parts, ``contiguous()`` of a product and the rounding of an fp32 result cost nothing:
an op computes in fp32 whatever it writes, so rounding its result is the same as writing it rounded.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import torch

from ..._C import get_device_dtype
from .. import config
from ..loop_ir import Access, Buffer, Constant, Kernel, LoopOp
from ..loop_ir.affine import composed, composed_table, dims_between
from ..loop_ir.overlaps import moving, reached


def elide_copies(kernel: Kernel) -> None:
    """After: no copy of a whole internal buffer whose producers could have written the copy's target, none in place.

    Ops that are planned one by one keep the copies between internal buffers, as the public compiler does.
    """
    # A copy that is gone may have been in the way of others, as between the versions of an argument that is written.
    while _elide_some(kernel):
        pass


def _elide_some(kernel: Kernel) -> bool:
    into_arguments_only = config.planning == "op_by_op"
    ops: list[LoopOp | None] = list(kernel.ops)
    touching: dict[str, set[int]] = defaultdict(set)
    for at, op in enumerate(kernel.ops):
        for name in (op.out.buffer, *op.reads()):
            touching[name].add(at)
    for at in range(len(ops)):
        copy = ops[at]  # as former copies that are gone have left it
        assert copy is not None
        inside = kernel.buffers[copy.out.buffer].kind == "internal"
        moved = None if inside and into_arguments_only else _elided(kernel, ops, touching, at)
        if moved is None:
            continue
        for i, op in moved.items():
            ops[i] = op
        assert isinstance(copy.ins[0], Access)
        source, target = copy.ins[0].buffer, copy.out.buffer
        touching[target] |= touching.pop(source)
        touching[target].discard(at)
        ops[at] = None
    before, kernel.ops = kernel.ops, [op for op in ops if op is not None and not _in_place(op)]
    return len(kernel.ops) < len(before)


def _in_place(op: LoopOp) -> bool:
    """A copy of something to where it is."""
    source = op.ins[0] if op.name == "copy" else None
    if not isinstance(source, Access) or (source.buffer, source.offset) != (op.out.buffer, op.out.offset):
        return False
    return moving(source, op) == moving(op.out, op)


def _elided(
    kernel: Kernel, ops: list[LoopOp | None], touching: dict[str, set[int]], at: int
) -> dict[int, LoopOp] | None:
    """The ops that change, by position; None where the copy has to stay."""
    copy = ops[at]
    assert copy is not None
    source = copy.ins[0] if copy.name == "copy" else None
    if not isinstance(source, Access) or not _worth_it(kernel, copy, source):
        return None
    buffer = kernel.buffers[source.buffer]
    users = {i: ops[i] for i in sorted(touching[buffer.name]) if i != at}
    writers = [i for i, op in users.items() if op is not None and op.out.buffer == buffer.name]
    if not writers or writers[-1] > at or not _may_round(kernel, copy, buffer, users, writers):
        return None
    # The old contents of the target must not be needed from the first write on, but point by point where they are
    # written; its new contents must stay as they are while others still read the buffer.
    for i in touching[copy.out.buffer] - {at}:
        op = ops[i]
        assert op is not None
        if writers[0] < i < at and not _apart(kernel, op, copy):
            return None
        if i == writers[0] and not _reads_where_it_writes(op, copy):
            return None
        written_later = op.out.buffer == copy.out.buffer and i > at and any(user > i for user in users)
        if written_later and not _apart(kernel, op, copy):
            return None
    moved = {}
    for i, op in users.items():
        assert op is not None
        changed = _moved(op, copy, buffer) if op.out.buffer != copy.out.buffer else None
        if changed is None:
            return None
        moved[i] = changed
    return moved


def _worth_it(kernel: Kernel, copy: LoopOp, source: Access) -> bool:
    buffer, target = kernel.buffers[source.buffer], kernel.buffers[copy.out.buffer]
    if buffer.kind != "internal" or buffer.name == target.name or source.offset:
        return False
    # The copy walks all of the buffer, each element once.
    whole = Access(buffer.name, buffer.stride)
    return dims_between(copy.sizes, source, source) == dims_between(buffer.size, whole, whole)


def _may_round(
    kernel: Kernel, copy: LoopOp, buffer: Buffer, users: dict[int, LoopOp | None], writers: list[int]
) -> bool:
    """The copy keeps the format, or rounds a value that nothing else reads and that ops compute in fp32."""
    target = kernel.buffers[copy.out.buffer]
    if get_device_dtype(buffer.dtype) == get_device_dtype(target.dtype):
        return True
    if buffer.dtype != torch.float32 or target.dtype not in (torch.float16, torch.bfloat16):
        return False
    return len(users) == len(writers) and all(
        op is not None and op.row.is_dense and op.name != "copy" for op in users.values()
    )


def _apart(kernel: Kernel, op: LoopOp, copy: LoopOp) -> bool:
    """Whether an op touches none of the elements that the copy writes."""
    buffer = kernel.buffers[copy.out.buffer]
    theirs = [
        reached(access, op, buffer, op.jumps(position, len(op.ins)))
        for position, access in enumerate((*op.ins, op.out))
        if isinstance(access, Access) and access.buffer == buffer.name
    ]
    mine = reached(copy.out, copy, buffer)
    return mine is not None and all(each is not None and _no_overlap(each, mine) for each in theirs)


def _no_overlap(a: list[range], b: list[range]) -> bool:
    return any(x.stop <= y.start or y.stop <= x.start for x, y in zip(a, b, strict=True))


def _reads_where_it_writes(op: LoopOp, copy: LoopOp) -> bool:
    if not op.row.is_pointwise:
        return copy.out.buffer not in op.reads()
    out = _moved_access(op.out, op.sizes, copy)
    same = [a for a in op.ins if isinstance(a, Access) and a.buffer == copy.out.buffer]
    return out is not None and all(a.offset == out.offset and moving(a, op) == moving(out, op) for a in same)


def _moved(op: LoopOp, copy: LoopOp, buffer: Buffer) -> LoopOp | None:
    """The op with every access to ``buffer`` turned into one to the copy's target; None where that is not affine."""
    source = copy.ins[0]
    assert isinstance(source, Access)
    dims = dims_between(copy.sizes, source, copy.out)
    accesses = [*op.ins, op.out]
    found: list[Access | Constant] = []
    for position, access in enumerate(accesses):
        if isinstance(access, Access) and access.buffer == buffer.name:
            if op.row.is_table(position, len(accesses) - 1):
                table = composed_table(op, position, dims, copy.out)
                if table is None:
                    return None
                op, access = table
            else:
                moved = composed(access, op.sizes, dims, copy.out)
                if moved is None:
                    return None
                access = moved
        found.append(access)
    *ins, out = found
    assert isinstance(out, Access)
    return replace(op, ins=tuple(ins), out=out)


def _moved_access(access: Access, sizes: tuple[int, ...], copy: LoopOp) -> Access | None:
    source = copy.ins[0]
    assert isinstance(source, Access)
    return composed(access, sizes, dims_between(copy.sizes, source, copy.out), copy.out)
