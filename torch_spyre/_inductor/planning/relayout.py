"""Relayout over the ring: a copy of a buffer in LX, from the division of its writer to that of a reader.

Both divisions give every core a box of the buffer's device coordinates. Along each device dimension they write the same
coordinate as two numbers of digits (:mod:`digits`). In the finer digits of both, four things are affine: the core that
has an element, its place there, the core that wants it, its place there. The copy has one loop per digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ... import _C
from ...card.description import STICK_BYTES
from ...ir.coordinates import device_strides
from ...ir.step import compute_step
from ...kernel_types import Operand
from ...ops.table import OPS
from ..layout.coordinates import Coordinates
from ..layout.device_ir import DeviceOp, Plan, ceil_div
from ..loop_ir import Access, LoopOp
from .core_tiles import can_hold, core_tile, lies_still, lx_placement, points_of
from .digits import Digit, Number, digits_of_loop, in_whole_sticks, refined
from .lx_copies import LxCopy


def relayout(
    plan: Plan, writer: DeviceOp, reader: DeviceOp, position: int, source: str, target: str
) -> DeviceOp | None:
    """The copy from ``source``, in LX as ``writer`` alone has left it, to ``target``, which has the same layout and is
    in LX as operand ``position`` of ``reader`` wants it. A core's box is copied whole, gaps included. None where no
    single copy can do it."""
    written, wanted = writer.operands[-1], reader.operands[position]
    if not (_stays(writer, written) and _stays(reader, wanted)) or plan.placement(source).replicas:
        return None
    tiles = {operand.tile_dim for operand in (written, wanted) if operand.tile_dim >= 0}
    if written.constant[-1] or len(tiles) > 1:
        return None
    tile, elements, lane = max(tiles, default=-1), plan.elements(source), len(written.constant) - 1
    has, wants = _number(writer, written, tile, elements), _number(reader, wanted, tile, elements)
    if has is None or wants is None:
        return None
    begin = [b - a for a, b in zip(written.constant, wanted.constant, strict=True)]
    if tile >= 0:
        begin[lane], begin[tile] = begin[lane] + elements * begin[tile], 0
    loops = [(-1, digit) for digit in _same_for_all(reader, wanted)]
    for dim in range(lane + 1):
        digits = refined(has.get(dim, []), wants.get(dim, []), begin[dim])
        if digits is None or (dim == lane and not in_whole_sticks(digits, elements)):
            return None
        loops += [(dim, digit) for digit in digits]
    if not loops:
        return None
    # Cores are numbered by the slices of the loops in their order, as the reader's are.
    loops.sort(key=lambda each: (each[1].loop < 0, each[1].loop if each[1].loop >= 0 else each[0], -each[1].unit))
    copy = _copy(plan, writer, loops, tile, source, target)
    made, needed = (
        core_tile(op, operand, elements, op.slices) for op, operand in ((copy, copy.operands[-1]), (reader, wanted))
    )
    return copy if lx_placement([made], [needed]) else None


def moves(plan: Plan) -> list[LxCopy]:
    """The copies that ``plan.moves`` asks for, each with a buffer of its own in ``plan.kernel``."""
    found = []
    for move in plan.moves:
        writer = next(op for op in plan.device_ops if op.loop_op.out.buffer == move.source)
        buffer = plan.kernel.buffers[move.source]
        target = plan.kernel.internal(buffer.dtype, buffer.size, buffer.stride, prefix="ring")
        plan.layouts[target.name] = plan.layouts[move.source]
        reader, position = move.as_in
        copy = relayout(plan, writer, plan.device_ops[reader], position, move.source, target.name)
        assert copy is not None, f"the planner moved {move.source} where it cannot go"
        found.append(LxCopy(move.source, copy, move.before, move.readers))
    return found


def relayout_us(plan: Plan, copy: DeviceOp) -> float:
    """What the clock says of such a copy."""
    buffer, (source, target) = copy.loop_op.out.buffer, copy.operands
    fetched = _operand(plan, buffer, source, source.inside(copy.across), copy.counts)
    fetched["core_strides"] = list(copy.across)
    operands = [
        _operand(plan, buffer, target, target.steps, points_of(copy, copy.slices)),
        fetched,
    ]
    return _C.time_of_steps([compute_step(OPS["copy"], copy.counts, copy.slices, operands)])[0]


def _stays(op: DeviceOp, operand: Coordinates) -> bool:
    return lies_still(operand) and can_hold(op, operand, op.slices)


def _number(op: DeviceOp, operand: Coordinates, tile: int, elements: int) -> Number | None:
    """The coordinates of an operand as digits; None where a loop moves several dimensions."""
    found: Number = {}
    points, lane = points_of(op, op.slices), len(operand.constant) - 1
    for loop, row in enumerate(operand.steps):
        moved = {dim: step for dim, step in enumerate(row) if step}
        if tile in moved:
            moved[lane] = moved.get(lane, 0) + elements * moved.pop(tile)
        if len(moved) > 1:
            return None
        for dim, step in moved.items():
            cores = prod(op.slices[loop + 1 :])
            digits = digits_of_loop(loop, op.counts[loop], op.slices[loop], points[loop], step, cores)
            found.setdefault(dim, []).extend(digits)
    return {
        dim: sorted((digit for digit in digits if digit.size > 1), key=lambda digit: digit.unit)
        for dim, digits in found.items()
    }


def _same_for_all(reader: DeviceOp, wanted: Coordinates) -> list[Digit]:
    """Slices of loops that do not move the operand: their cores all want the same."""
    return [
        Digit(slices, 0, loop, slices)
        for loop, (slices, row) in enumerate(zip(reader.slices, wanted.steps, strict=True))
        if slices > 1 and not any(row)
    ]


def _copy(
    plan: Plan,
    writer: DeviceOp,
    loops: list[tuple[int, Digit]],
    tile: int,
    source: str,
    target: str,
) -> DeviceOp:
    """The copy, inside the tile loops of the writer."""
    written = writer.operands[-1]
    layout, lane = plan.layouts[source], len(written.constant) - 1
    elements, steps, stick = layout.device_size[-1], [], -1
    for loop, (dim, digit) in enumerate(loops):
        row = [0] * (lane + 1)
        if dim == lane and digit.unit > 1:
            row[tile] = digit.unit // elements
        elif dim >= 0:
            row[dim] = digit.unit
            stick = loop if dim == lane else stick
        steps.append(row)

    def operand() -> Coordinates:
        still = [[0] * (lane + 1) for _ in writer.loop_op.tile_loops]
        rows = [list(row) for row in steps]
        return Coordinates(list(written.constant), rows, stick, elements, tile if stick >= 0 else -1, tile_steps=still)

    counts = [digit.size for _, digit in loops]
    strides = tuple(sum(n * max(unit, 0) for n, unit in zip(row, layout.stride_map, strict=True)) for row in steps)
    offset = sum(n * max(unit, 0) for n, unit in zip(written.constant, layout.stride_map, strict=True))
    op = LoopOp(
        "copy",
        tuple(counts),
        Access(target, strides, offset),
        (Access(source, strides, offset),),
        source=writer.loop_op.source,
        aten=writer.loop_op.aten,
        tile_loops=writer.loop_op.tile_loops,
    )
    slices = [digit.slices if digit.loop >= 0 else 1 for _, digit in loops]
    across = tuple(digit.cores for _, digit in loops)
    return DeviceOp(op, counts, list(range(len(counts))), [operand(), operand()], 0, slices, across=across)


def _operand(plan: Plan, buffer: str, at: Coordinates, rows: list[list[int]], points: Sequence[int]) -> Operand:
    """An operand of a step, at the beginning of LX, of no more than these points need."""
    layout = plan.layouts[buffer]
    elements, size = layout.device_size[-1], [1] * len(at.constant)
    for loop, (row, count) in enumerate(zip(rows, points, strict=True)):
        if loop != at.stick:
            size = [n + step * (count - 1) for n, step in zip(size, row, strict=True)]
        elif at.tile_dim >= 0:
            size[at.tile_dim] += ceil_div(count, elements) - 1
    bytes_ = device_strides([*size[:-1], elements], elements)
    strides = [sum(a * b for a, b in zip(row, bytes_, strict=True)) for row in rows]
    operand: Operand = {"lx": 0, "format": layout.device_dtype.name, "strides": strides}
    if at.stick >= 0:
        strides[at.stick] = bytes_[at.tile_dim] if at.tile_dim >= 0 else STICK_BYTES
        operand["stick"] = at.stick
    return operand
