"""Every loop op becomes ops in device coordinates: one per piece of its views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import Unsupported
from ..loop_ir import Access, LoopOp, Parameter, known
from .coordinates import Coordinates, Operand, Piece
from .device_ir import DeviceOp, Plan
from .lift_views import NotAligned, lift


def lift_ops(plan: Plan) -> None:
    """Fills ``plan.device_ops``. Folded loops come last; a matmul's loops are [batch ..., m, n, k], those of attention
    [batch ..., q, e, l, d]."""
    for op in plan.kernel.ops:
        for piece in pieces_of(plan, op):
            device_op = _LIFTED.get(op.name, _device_op)(plan, op, piece)
            if op.tile_loops:
                _set_tile_loops_apart(plan, device_op)
            plan.device_ops.append(device_op)


def pieces_of(plan: Plan, op: LoopOp) -> list[Piece]:
    """An op's parts in device coordinates. Raises Unsupported or NotAligned where its operands lie in other ways."""
    operands = plan.operands(op)
    out_place = plan.placement(op.out.buffer)
    counts = op.sizes
    if out_place.replicas:
        # What a layout repeats is written everywhere: one more loop for each such dimension.
        counts = (*(r.extent for r in out_place.replicas), *counts)
        more = len(out_place.replicas)
        operands = [
            replace(s, strides=(*([0] * more), *s.strides), stick_loop=s.stick_loop + more if s.stick_loop >= 0 else -1)
            for s in operands
        ]
    if op.row.is_iota:
        start, *steps = map(known, op.parameters)
        operands.append(Operand((), 0, (*([0] * (len(counts) - len(steps))), *map(int, steps)), int(start)))
    try:
        pieces = lift(counts, operands)
    except NotAligned:  # a move between sticks
        plain = [
            _without_sticks(plan, access, operand) for access, operand in zip(op.accesses(), operands, strict=False)
        ]
        pieces = lift(counts, [*plain, *operands[len(plain) :]])
    for piece in pieces:
        _write_replicas(piece, plan, op)
    return pieces


def _without_sticks(plan: Plan, access: Access, operand: Operand) -> Operand:
    plain = plan.operand(access, -1, operand.jumps)
    return replace(plain, strides=operand.strides)


def _write_replicas(piece: Piece, plan: Plan, op: LoopOp) -> None:
    """Every copy of an element is written; an op that reads where it writes reads of each copy what it writes there."""
    replicas = plan.placement(op.out.buffer).replicas
    accesses = op.accesses()
    in_place = [
        operand for access, operand in zip(accesses, piece.operands, strict=False) if access.buffer == op.out.buffer
    ]
    for n, origin in enumerate(piece.origins):
        if origin < len(replicas):
            for operand in in_place:
                operand.steps[n][replicas[origin].dim] = 1


def _device_op(plan: Plan, op: LoopOp, piece: Piece) -> DeviceOp:
    more = len(plan.placement(op.out.buffer).replicas)
    kept = len(op.sizes) - op.reduced + more
    folded = sum(origin >= kept for origin in piece.origins)
    parameters: tuple[Parameter, ...] = op.parameters
    operands = piece.operands
    if op.row.is_iota:
        *operands, values = operands
        parameters = (float(values.constant[0]), *(float(row[0]) for row in values.steps))
    device_op = DeviceOp(op, piece.counts, piece.origins, operands, folded, parameters=parameters)
    if (op.row.folds_by_choice or op.row.is_topk) and not folded:
        _add_loop(device_op, len(piece.counts), kept)
        device_op.reduced = 1
    scanned = op.row.is_scan and (not piece.origins or piece.origins[-1] != kept - 1)
    if scanned or not device_op.counts:
        _add_loop(device_op, len(device_op.counts), kept - 1)
    if op.row.is_topk and not any(origin == kept - 1 for origin in piece.origins):
        _add_loop(device_op, len(device_op.counts) - 1, kept - 1)
    return device_op


def _add_loop(op: DeviceOp, at: int, origin: int) -> None:
    """A loop of one point, where an op needs the dimension by name."""
    op.counts.insert(at, 1)
    op.origins.insert(at, origin)
    if op.loop_op.row.is_iota:
        op.parameters = (*op.parameters[: at + 1], 0.0, *op.parameters[at + 1 :])
    for operand in op.operands:
        operand.steps.insert(at, [0] * len(operand.constant))
        if operand.stick >= at:
            operand.stick += 1


def _with_last(device_op: DeviceOp, wanted: Sequence[tuple[int, Coordinates | None]]) -> list[int]:
    """The loops of these origins, or of the sticks of a operand, come last; returns how all were ordered before.

    Of several loops of one origin, from views, the longest is meant. Where there is none, one of a single point is.
    """
    chosen = []
    for origin, along in wanted:
        loops = [i for i, o in enumerate(device_op.origins) if o == origin]
        if along is not None:
            loops = [i for i in loops if i == along.stick]
        if not loops:
            _add_loop(device_op, len(device_op.counts), origin)
            loops = [len(device_op.counts) - 1]
        chosen.append(max(loops, key=lambda i: device_op.counts[i]))
    order = [i for i in range(len(device_op.counts)) if i not in chosen] + chosen
    _reorder(device_op, order)
    return order


def _matmul(plan: Plan, op: LoopOp, piece: Piece) -> DeviceOp:
    """Of several loops over n the one along the sticks stays n."""
    rank = len(op.sizes)
    device_op = DeviceOp(op, piece.counts, piece.origins, piece.operands, 1)
    a, b, c = piece.operands
    order = _with_last(device_op, ((rank - 3, None), (rank - 2, c), (rank - 1, a)))
    n, k = len(order) - 2, len(order) - 1
    _along(plan, op.out.buffer, c, n)
    left, right = op.ins
    assert isinstance(left, Access) and isinstance(right, Access)
    _along(plan, left.buffer, a, k)
    _along(plan, right.buffer, b, n if device_op.counts[n] == 1 else k)
    return device_op


def _attention(plan: Plan, op: LoopOp, piece: Piece) -> DeviceOp:
    rank = len(op.sizes)
    device_op = DeviceOp(op, piece.counts, piece.origins, piece.operands, 2, parameters=op.parameters)
    order = _with_last(device_op, [(rank - i, None) for i in (4, 3, 2, 1)])
    e, d = len(order) - 3, len(order) - 1
    for (access, operand), loop in zip(zip(op.accesses(), piece.operands, strict=True), (d, d, e), strict=False):
        _along(plan, access.buffer, operand, loop)
    _along(plan, op.out.buffer, piece.operands[-1], e)
    return device_op


def _paged(plan: Plan, op: LoopOp, piece: Piece) -> DeviceOp:
    """All loops, in their order, also those of a single point."""
    rank = len(op.sizes)
    device_op = DeviceOp(op, piece.counts, piece.origins, piece.operands, op.reduced, parameters=op.parameters)
    if len(_with_last(device_op, [(i, None) for i in range(rank)])) != rank:
        raise Unsupported("paged attention over a cache or queries whose dimensions are not those of their layout")
    for access, operand, loop in zip(op.accesses(), piece.operands, (7, 7, 3), strict=False):
        _along(plan, access.buffer, operand, loop)
    _along(plan, op.out.buffer, piece.operands[-1], 3)
    return device_op


_LIFTED = {"matmul": _matmul, "attention": _attention, "paged_attention": _paged}


def _set_tile_loops_apart(plan: Plan, op: DeviceOp) -> None:
    """Tile loops leave the op's own loops: the steps along them become ``tile_steps``."""
    more = len(plan.placement(op.loop_op.out.buffer).replicas)
    outer = []
    for number, (_, count) in enumerate(op.loop_op.tile_loops):
        loops = [i for i, origin in enumerate(op.origins) if origin == number + more]
        if len(loops) != 1 or op.counts[loops[0]] != count or any(operand.stick == loops[0] for operand in op.operands):
            raise Unsupported(_unaligned(plan, op.loop_op, number))
        outer += loops
    for operand in op.operands:
        operand.tile_steps = [operand.steps[i] for i in outer]
    _reorder(op, [i for i in range(len(op.counts)) if i not in outer])
    if not op.counts:
        _add_loop(op, 0, len(op.loop_op.sizes) - 1 + more)


def _unaligned(plan: Plan, op: LoopOp, number: int) -> str:
    name, tiles = op.names[number].removeprefix("tiles of "), op.tile_loops[number][1]
    elements = max(plan.elements(access.buffer) for access in op.accesses())
    return (
        f"spyre_hint(num_tiles_per_dim={{{name!r}: {tiles}}}): {op.name} over {list(op.sizes)}"
        f"{op.where()} would begin tiles of {name} inside sticks, which hold {elements} "
        "elements, or across dimensions of the card; use tiles of whole sticks"
    )


def _reorder(op: DeviceOp, order: list[int]) -> None:
    op.counts = [op.counts[i] for i in order]
    op.origins = [op.origins[i] for i in order]
    for operand in op.operands:
        operand.steps = [operand.steps[i] for i in order]
        operand.stick = order.index(operand.stick) if operand.stick >= 0 else -1


def _along(plan: Plan, buffer: str, operand: Coordinates, loop: int) -> None:
    """An operand with a single point along its sticks still lies along them."""
    if operand.stick < 0:
        if operand.constant[-1] or any(row[-1] for row in operand.steps):
            raise Unsupported("a product over a view that crosses the sticks of its operand")
        operand.stick, operand.elements = loop, plan.elements(buffer)
        operand.steps[loop][-1] = 1
