"""Layouts for the buffers that a kernel makes.

Before: arguments have the layouts they came with. After: every buffer has one. A result follows what it is made from,
its sticks and the order of its other dimensions, so that chains of ops need no restickify and move in long runs. What
a matrix product makes has its rows next to the sticks and its batches outermost. What leaves the kernel has the
default layout, but a fold along the sticks leaves one element per stick.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import prod

from .. import config
from ..loop_ir import Access, Buffer, Kernel, LoopOp
from .device_ir import Plan, dense_layout, stride_order

# Which loops, from the last on, run over the rows and the columns of a result.
ROWS_AND_COLUMNS = {"matmul": (3, 2), "attention": (4, 3)}


def propagate_layouts(plan: Plan) -> None:
    """Fills ``plan.layouts``: the first op that writes a buffer decides. Where ops are planned one by one it decides
    only which dimension lies in sticks."""
    by_default = config.planning == "op_by_op"
    if not by_default:
        _shape_internal_buffers(plan.kernel)
    follow_rules(plan, by_default)


def follow_rules(plan: Plan, by_default: bool = False) -> None:
    """Layouts for a kernel whose buffers have been shaped. ``by_default``: an op decides only about the sticks."""
    for op in plan.kernel.ops:
        buffer = plan.kernel.buffers[op.out.buffer]
        if buffer.name in plan.layouts:
            continue
        order, sparse = list(buffer.order or stride_order(buffer)), False
        if not buffer.order:
            lanes = _lane_dimension(plan, op)
            if buffer.kind == "internal" and lanes is not None:
                order = [dim for dim in order if dim != lanes] + [lanes]
            if buffer.kind == "internal" and not by_default:
                order = _order(plan, op, order)
            if lanes is None and _whole(plan, op):
                sparse = bool(buffer.size) and buffer.size[order[-1]] > 1 and _leaves_single_elements(plan, op)
        plan.layouts[buffer.name] = dense_layout(buffer, tuple(order), sparse)
    for name, buffer in plan.kernel.buffers.items():
        if name not in plan.layouts:
            plan.layouts[name] = dense_layout(buffer)


def _shape_internal_buffers(kernel: Kernel) -> None:
    """Dimensions as the ops see them: none of a single point, and one where an op goes along several in one loop."""
    longest: dict[str, int] = defaultdict(int)
    for op in kernel.ops:
        for access in (op.out, *op.ins):
            if isinstance(access, Access):
                along = (n for n, stride in zip(op.sizes, access.strides, strict=True) if stride == 1)
                longest[access.buffer] = max([longest[access.buffer], *along])
    for name, buffer in kernel.buffers.items():
        if buffer.kind == "internal" and buffer.order is None:
            kernel.buffers[name] = _shaped(buffer, longest[name])


def _shaped(buffer: Buffer, longest: int) -> Buffer:
    dims = sorted(((s, n) for n, s in zip(buffer.size, buffer.stride, strict=True) if n != 1), reverse=True)
    while len(dims) > 1 and dims[-1][0] == 1 and dims[-1][1] < longest and dims[-2][0] == dims[-1][1]:
        (_, outer), (_, inner) = dims[-2:]
        dims[-2:] = [(1, outer * inner)]
    return replace(buffer, size=tuple(n for _, n in dims), stride=tuple(s for s, _ in dims))


def _order(plan: Plan, op: LoopOp, order: list[int]) -> list[int]:
    """The dimensions from the one next to the sticks, then from the outermost on, to the one in sticks."""
    if len(order) < 3:
        return order
    *others, last = order
    if op.name in ROWS_AND_COLUMNS:
        rows = _dimension(plan, op, len(op.sizes) - ROWS_AND_COLUMNS[op.name][0])
        row = others[-1] if rows is None or rows == last else rows
        return [row, *(dim for dim in others if dim != row), last]
    guide = _guide(plan, op)
    places = {} if guide is None else _places(plan, op, guide)
    found = [dim for dim in others if dim in places]
    row = max(found, key=lambda dim: places[dim]) if found else others[-1]
    rest = [dim for dim in others if dim != row]
    if len(found) == len(others):
        rest.sort(key=lambda dim: places[dim])
    return [row, *rest, last]


def _places(plan: Plan, op: LoopOp, guide: Access) -> dict[int, int]:
    """Dimensions of the result: which device dimension of the operand they run along."""
    layout = plan.layouts[guide.buffer]
    levels = list(enumerate(zip(layout.device_size, layout.stride_map, strict=True)))[:-1]
    found = {}
    for loop in range(len(op.sizes) - op.reduced):
        dim = _dimension(plan, op, loop)
        step = guide.strides[loop]
        place = next((i for i, (n, unit) in levels if 0 < unit <= step < unit * n and step % unit == 0), None)
        if dim is not None and place is not None:
            found[dim] = place
    return found


def _whole(plan: Plan, op: LoopOp) -> bool:
    kept = op.sizes[len(op.tile_loops) : len(op.sizes) - op.reduced]
    return prod(plan.kernel.buffers[op.out.buffer].size) in (
        prod(kept),
        prod(kept) * prod(op.sizes[: len(op.tile_loops)]),
    )


def _leaves_single_elements(plan: Plan, op: LoopOp) -> bool:
    """A fold along the sticks, or an op on what such a fold has left."""
    if op.row.is_reduction:
        source = op.ins[0]
        return isinstance(source, Access) and plan.lane_loop(source, op.sizes) >= len(op.sizes) - op.reduced
    guide = _guide(plan, op)
    inside = guide is not None and all(
        plan.kernel.buffers[name].kind == "internal" for name in (op.out.buffer, guide.buffer)
    )
    if not op.row.is_pointwise or guide is None or not inside:
        return False
    layout = plan.layouts[guide.buffer]
    return layout.stride_map[-1] <= 0 and layout.device_size[-1] > 1


def _guide(plan: Plan, op: LoopOp) -> Access | None:
    """The first operand that is as large as the result: one that is broadcast says nothing about how it should lie."""
    for access in op.ins:
        if not isinstance(access, Access) or access.buffer not in plan.layouts:
            continue
        moves = list(zip(op.sizes, access.strides, strict=True))[len(op.tile_loops) :]  # a tile may stand still
        if all(n == 1 or stride for n, stride in moves):
            return access
    return None


def _lane_dimension(plan: Plan, op: LoopOp) -> int | None:
    """The dimension of the output that lies along the sticks of the operand that guides it."""
    if op.name in ROWS_AND_COLUMNS:
        return _dimension(plan, op, len(op.sizes) - ROWS_AND_COLUMNS[op.name][1])
    guide = _guide(plan, op)
    if not (op.row.is_pointwise or op.row.is_reduction) or guide is None:
        return None
    loop = plan.lane_loop(guide, op.sizes)
    return _dimension(plan, op, loop) if 0 <= loop < len(op.sizes) - op.reduced else None


def _dimension(plan: Plan, op: LoopOp, loop: int) -> int | None:
    """The dimension of the output buffer that a loop runs along, together with the tile loops around it."""
    buffer = plan.kernel.buffers[op.out.buffer]
    step = op.out.strides[loop]
    points = [op.sizes[loop]]
    for outer in range(min(loop, len(op.tile_loops)) - 1, -1, -1):
        if op.out.strides[outer] == step * points[-1]:
            points.append(points[-1] * op.sizes[outer])
    for dim, (n, stride) in enumerate(zip(buffer.size, buffer.stride, strict=True)):
        if n in points and stride == step and n > 1:
            return dim
    return None
