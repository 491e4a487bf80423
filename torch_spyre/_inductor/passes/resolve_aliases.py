"""Arguments that share a storage become one buffer, so that later passes see every overlap."""

from __future__ import annotations

from dataclasses import replace

from ..loop_ir import Access, Constant, Kernel


def resolve_aliases(kernel: Kernel, offsets: dict[str, int], storages: dict[str, str]) -> None:
    """``storages``: for each argument the first one on the same storage. After: no two buffers share memory."""
    if all(name == first for name, first in storages.items()):
        return

    def resolved(access: Access | Constant) -> Access | Constant:
        if isinstance(access, Constant) or storages.get(access.buffer, access.buffer) == access.buffer:
            return access
        first = storages[access.buffer]
        return Access(first, access.strides, access.offset + offsets[access.buffer] - offsets[first])

    for i, op in enumerate(kernel.ops):
        out = resolved(op.out)
        assert isinstance(out, Access)
        kernel.ops[i] = replace(op, out=out, ins=tuple(resolved(a) for a in op.ins))
