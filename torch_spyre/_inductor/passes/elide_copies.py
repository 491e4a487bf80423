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
from ..loop_ir.affine import composed, dims_between
from ..loop_ir.overlaps import moving


def elide_copies(kernel: Kernel) -> None:
    """After: no copy of a whole internal buffer whose producers could have written the copy's target, none in place.

    Ops that are planned one by one keep the copies between internal buffers, as the public compiler does.
    """
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
    kernel.ops = [op for op in ops if op is not None and not _in_place(op)]


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
        if writers[0] < i < at:
            return None
        if i == writers[0] and not _reads_where_it_writes(op, copy):
            return None
        if op.out.buffer == copy.out.buffer and i > at and any(user > i for user in users):
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
    # The copy walks the buffer dimension by dimension, all of it.
    mine = [(n, s) for n, s in zip(copy.sizes, source.strides, strict=True) if n > 1]
    whole = [(n, s) for n, s in zip(buffer.size, buffer.stride, strict=True) if n > 1]
    return sorted(mine) == sorted(whole)


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


def _reads_where_it_writes(op: LoopOp, copy: LoopOp) -> bool:
    if not op.row.is_pointwise:
        return copy.out.buffer not in op.reads()
    out = _moved_access(op.out, op.sizes, copy)
    same = [a for a in op.ins if isinstance(a, Access) and a.buffer == copy.out.buffer]
    return out is not None and all(a.offset == out.offset and moving(a, op) == moving(out, op) for a in same)


def _moved(op: LoopOp, copy: LoopOp, buffer: Buffer) -> LoopOp | None:
    """The op with every access to ``buffer`` turned into one to the copy's target; None where that is not affine."""
    ins: list[Access | Constant] = []
    for position, access in enumerate(op.ins):
        if isinstance(access, Access) and access.buffer == buffer.name:
            if op.indirect and position == 0 and op.row.is_gather:
                return None
            moved = _moved_access(access, op.sizes, copy)
            if moved is None:
                return None
            access = moved
        ins.append(access)
    out, indirect = op.out, op.indirect
    if out.buffer == buffer.name:
        found = _moved_access(out, op.sizes, copy)
        if found is None:
            return None
        out = found
        if indirect and op.row.is_scatter:
            source = copy.ins[0]
            assert isinstance(source, Access)
            targets = dict(zip(zip(source.strides, copy.sizes, strict=True), copy.out.strides, strict=True))
            if any((i.stride, i.extent) not in targets for i in indirect):
                return None
            indirect = tuple(replace(i, stride=targets[i.stride, i.extent]) for i in indirect)
    return replace(op, ins=tuple(ins), out=out, indirect=indirect)


def _moved_access(access: Access, sizes: tuple[int, ...], copy: LoopOp) -> Access | None:
    source = copy.ins[0]
    assert isinstance(source, Access)
    return composed(access, sizes, dims_between(copy.sizes, source, copy.out), copy.out)
