"""Kernels that do the same get the same text, wherever in a program they stand: the layers of a model compile once."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from .ir import Access, Constant, Kernel


def canonical(kernel: Kernel) -> Kernel:
    """The same kernel with names that follow from what it does: its own from its ops, buffers' from their order. It
    does not know which nodes it comes from."""
    names = {name: f"{buffer.kind[:3]}{position}" for position, (name, buffer) in enumerate(kernel.buffers.items())}

    def access(given: Access) -> Access:
        return replace(given, buffer=names[given.buffer])

    def operand(given: Access | Constant) -> Access | Constant:
        return access(given) if isinstance(given, Access) else given

    renamed = Kernel(
        name="",
        buffers={names[name]: replace(buffer, name=names[name]) for name, buffer in kernel.buffers.items()},
        ops=[
            replace(op, out=access(op.out), ins=tuple(operand(each) for each in op.ins), nodes=()) for op in kernel.ops
        ],
        numbers=kernel.numbers,
    )
    content = hashlib.sha256(renamed.to_json().encode()).hexdigest()
    ops = list(dict.fromkeys(op.name for op in kernel.ops))
    renamed.name = "_".join(["spyre", *ops[:4], content[:8]])
    return renamed
