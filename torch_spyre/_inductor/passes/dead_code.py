"""Removes ops whose results are not read."""

from __future__ import annotations

from ..loop_ir import Kernel


def dead_code(kernel: Kernel) -> None:
    """After: every op writes an argument or a buffer that a later op reads; unused buffers are gone."""
    wanted = {name for name, buffer in kernel.buffers.items() if buffer.kind != "internal"}
    kept = []
    for op in reversed(kernel.ops):
        if op.out.buffer in wanted and 0 not in op.sizes[: len(op.sizes) - op.reduced]:
            wanted.update(op.reads())
            kept.append(op)
    kernel.ops = kept[::-1]
    kernel.buffers = {name: buffer for name, buffer in kernel.buffers.items() if name in wanted}
