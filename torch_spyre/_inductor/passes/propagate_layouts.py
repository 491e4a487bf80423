"""Layouts for the buffers that a kernel makes.

Before: arguments have the layouts they came with. After: every buffer has one. A result follows the sticks of what it
is made from, so that chains of ops need no restickify; what leaves the kernel has the default layout, but a fold along
the sticks leaves one element per stick.
"""

from __future__ import annotations

from math import prod

from ...ops.table import OPS
from ..loop_ir import Access, LoopOp
from .plan import Plan, dense_layout, stride_order


def propagate_layouts(plan: Plan) -> None:
    """The first op that writes a buffer decides."""
    for op in plan.kernel.ops:
        buffer = plan.kernel.buffers[op.out.buffer]
        if buffer.name in plan.layouts:
            continue
        order, sparse = list(buffer.order or stride_order(buffer)), False
        lanes = _lane_dimension(plan, op)
        if buffer.order:
            pass
        elif OPS[op.name].kind == "reduction" and lanes is None and _whole(plan, op):
            sparse = bool(buffer.size) and buffer.size[order[-1]] > 1 and _folds_sticks(plan, op)
        elif lanes is not None and buffer.kind == "internal":
            order = [dim for dim in order if dim != lanes] + [lanes]
        plan.layouts[buffer.name] = dense_layout(buffer, tuple(order), sparse)
    for name, buffer in plan.kernel.buffers.items():
        if name not in plan.layouts:
            plan.layouts[name] = dense_layout(buffer)


def _whole(plan: Plan, op: LoopOp) -> bool:
    return prod(plan.kernel.buffers[op.out.buffer].size) == prod(op.sizes[: len(op.sizes) - op.reduced])


def _folds_sticks(plan: Plan, op: LoopOp) -> bool:
    source = op.ins[0]
    if not isinstance(source, Access):
        return False
    return plan.lane_loop(source, op.sizes) >= len(op.sizes) - op.reduced


def _lane_dimension(plan: Plan, op: LoopOp) -> int | None:
    """The dimension of the output that lies along the sticks of the first operand that is as large."""
    kind = OPS[op.name].kind
    if kind == "matmul":
        loop = len(op.sizes) - 2
        return _dimension(plan, op, loop)
    if kind not in ("pointwise", "reduction"):
        return None
    for access in op.ins:
        if not isinstance(access, Access) or access.buffer not in plan.layouts:
            continue
        # An operand that is broadcast says nothing about how the result should lie.
        if any(n > 1 and not stride for n, stride in zip(op.sizes, access.strides, strict=True)):
            continue
        loop = plan.lane_loop(access, op.sizes)
        if 0 <= loop < len(op.sizes) - op.reduced:
            return _dimension(plan, op, loop)
    return None


def _dimension(plan: Plan, op: LoopOp, loop: int) -> int | None:
    """The dimension of the output buffer that a loop runs along."""
    buffer = plan.kernel.buffers[op.out.buffer]
    for dim, (n, stride) in enumerate(zip(buffer.size, buffer.stride, strict=True)):
        if n == op.sizes[loop] and stride == op.out.strides[loop] and n > 1:
            return dim
    return None
