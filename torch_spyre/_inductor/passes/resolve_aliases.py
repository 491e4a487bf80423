"""Arguments that share a storage become one buffer, so that later passes see every overlap."""

from __future__ import annotations

from dataclasses import replace

from ..layout.device_ir import Plan
from ..loop_ir import Access, Constant


def resolve_aliases(plan: Plan) -> None:
    """After: no two buffers share memory."""
    offsets, storages, kernel = plan.offsets, plan.storages, plan.kernel
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
