"""A value that is only made to be copied into an argument is made there in the first place."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ..._C import get_device_dtype
from ...ops.table import OPS
from ..loop_ir import Access, Buffer, Constant, Kernel, LoopOp


def elide_copies(kernel: Kernel) -> None:
    """After: no copy of a whole internal buffer whose producers could have written the copy's target, none in place."""
    ops = dict(enumerate(kernel.ops))  # by position; what is elided leaves a gap
    users: dict[str, set[int]] = defaultdict(set)  # positions of the ops that touch a buffer
    for at, op in ops.items():
        for name in (op.out.buffer, *op.reads()):
            users[name].add(at)
    for at in range(len(ops)):
        copy = ops[at]
        moved = _elided(kernel, ops, users, at)
        if moved is None:
            continue
        del ops[at]
        ops.update(moved)
        users[copy.out.buffer] = (users[copy.out.buffer] - {at}) | set(moved)
    kernel.ops = [ops[at] for at in sorted(ops) if not (ops[at].name == "copy" and ops[at].ins[0] == ops[at].out)]


def _elided(kernel: Kernel, ops: dict[int, LoopOp], users: dict[str, set[int]], at: int) -> dict[int, LoopOp] | None:
    """The ops that change where the copy at a position is not needed; None where it is."""
    copy = ops[at]
    source = copy.ins[0] if copy.name == "copy" else None
    if not isinstance(source, Access) or not _worth_it(kernel, copy, source):
        return None
    buffer = kernel.buffers[source.buffer]
    touching = sorted(users[buffer.name] - {at})
    writers = [i for i in touching if ops[i].out.buffer == buffer.name]
    if not writers or writers[-1] > at:
        return None
    # The old contents of the target must not be needed from the first write on, but point by point where they are
    # written; its new contents must stay as they are while others still read the buffer.
    for i in users[copy.out.buffer] - {at}:
        if writers[0] < i < at:
            return None
        if i == writers[0] and not _reads_where_it_writes(ops[i], copy, buffer):
            return None
        if ops[i].out.buffer == copy.out.buffer and i > at and touching[-1] > i:
            return None
    moved = {i: _moved(ops[i], copy, buffer) for i in touching}
    found = {i: op for i, op in moved.items() if op is not None}
    return found if len(found) == len(moved) else None


def _worth_it(kernel: Kernel, copy: LoopOp, source: Access) -> bool:
    buffer, target = kernel.buffers[source.buffer], kernel.buffers[copy.out.buffer]
    if buffer.kind != "internal" or target.kind == "internal" or buffer.name == target.name:
        return False
    if get_device_dtype(buffer.dtype) != get_device_dtype(target.dtype) or source.offset:
        return False
    # The copy walks the buffer dimension by dimension, all of it.
    mine = [(n, s) for n, s in zip(copy.sizes, source.strides, strict=True) if n > 1]
    whole = [(n, s) for n, s in zip(buffer.size, buffer.stride, strict=True) if n > 1]
    return sorted(mine) == sorted(whole)


def _reads_where_it_writes(op: LoopOp, copy: LoopOp, buffer: Buffer) -> bool:
    if OPS[op.name].kind != "pointwise":
        return copy.out.buffer not in op.reads()
    out = _moved_access(op.out, op.sizes, copy, buffer)
    same = [a for a in op.ins if isinstance(a, Access) and a.buffer == copy.out.buffer]
    return out is not None and all(a.offset == out.offset and _moving(a, op) == _moving(out, op) for a in same)


def _moving(access: Access, op: LoopOp) -> list[int]:
    return [stride for stride, size in zip(access.strides, op.sizes, strict=True) if size > 1]


def _moved(op: LoopOp, copy: LoopOp, buffer: Buffer) -> LoopOp | None:
    """The op with every access to ``buffer`` turned into one to the copy's target; None where that is not affine."""
    ins: list[Access | Constant] = []
    for position, access in enumerate(op.ins):
        if isinstance(access, Access) and access.buffer == buffer.name:
            if op.indirect and position == 0 and OPS[op.name].kind == "gather":
                return None
            moved = _moved_access(access, op.sizes, copy, buffer)
            if moved is None:
                return None
            access = moved
        ins.append(access)
    out, indirect = op.out, op.indirect
    if out.buffer == buffer.name:
        found = _moved_access(out, op.sizes, copy, buffer)
        if found is None:
            return None
        out = found
        if indirect and OPS[op.name].kind == "scatter":
            source = copy.ins[0]
            assert isinstance(source, Access)
            targets = dict(zip(zip(source.strides, copy.sizes, strict=True), copy.out.strides, strict=True))
            if any((i.stride, i.extent) not in targets for i in indirect):
                return None
            indirect = tuple(replace(i, stride=targets[i.stride, i.extent]) for i in indirect)
    return replace(op, ins=tuple(ins), out=out, indirect=indirect)


def _moved_access(access: Access, sizes: tuple[int, ...], copy: LoopOp, buffer: Buffer) -> Access | None:
    source = copy.ins[0]
    assert isinstance(source, Access)
    # (stride in the buffer, size, stride in the target), outermost first.
    dims = sorted(
        ((s, n, t) for s, n, t in zip(source.strides, copy.sizes, copy.out.strides, strict=True) if n > 1),
        reverse=True,
    )
    offset, rest = copy.out.offset, access.offset
    begins = {}
    for stride, _, target in dims:
        begins[stride], rest = divmod(rest, stride)
        offset += begins[stride] * target
    if rest:
        return None
    strides = []
    for n, stride in zip(sizes, access.strides, strict=True):
        if n == 1 or stride == 0:
            strides.append(0)
            continue
        dim = next(((s, size, t) for s, size, t in dims if stride % s == 0), None)
        if dim is None or begins[dim[0]] + (n - 1) * (stride // dim[0]) >= dim[1]:
            return None
        strides.append(stride // dim[0] * dim[2])
    return Access(copy.out.buffer, tuple(strides), offset)
