"""An op that would read what it writes goes through a buffer of its own."""

from __future__ import annotations

from dataclasses import replace

from ..loop_ir import Access, Kernel, LoopOp
from ..loop_ir.overlaps import overlaps


def separate_overlaps(kernel: Kernel) -> None:
    """After: an op reads its output buffer only point by point, each point exactly where it writes it."""
    ops: list[LoopOp] = []
    for op in kernel.ops:
        if not overlaps(op):
            ops.append(op)
        elif op.row.is_scatter:
            # The table keeps what is not written, so it is the values that move out of the way.
            ins = []
            for access in op.ins:
                if isinstance(access, Access) and access.buffer == op.out.buffer:
                    through = _temporary(kernel, op.sizes, access.buffer)
                    ops.append(LoopOp("copy", op.sizes, through, (access,), source=op.source, aten=op.aten))
                    access = through
                ins.append(access)
            ops.append(replace(op, ins=tuple(ins)))
        else:
            kept = len(op.sizes) - op.reduced
            through = _temporary(kernel, op.sizes[:kept], op.out.buffer)
            ops.append(replace(op, out=replace(through, strides=(*through.strides, *([0] * op.reduced)))))
            out = replace(op.out, strides=op.out.strides[:kept])
            ops.append(LoopOp("copy", op.sizes[:kept], out, (through,), source=op.source, aten=op.aten))
    kernel.ops = ops


def _temporary(kernel: Kernel, sizes: tuple[int, ...], like: str) -> Access:
    buffer = kernel.internal(kernel.buffers[like].dtype, sizes)
    return Access(buffer.name, buffer.stride)
