"""What holds of layouts and device ops, whichever pass has them. A rule may count on those above it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import prod

import torch

from ..._C import SpyreTensorLayout, get_device_dtype
from ...ir.core_split import BY_NATURE
from ..loop_ir import Buffer, LoopOp
from ..loop_ir.verify import bounds, described, reached
from ..verification import Rule, check
from .coordinates import Coordinates
from .device_ir import DeviceOp, Plan, ceil_div


def verify(plan: Plan, where: str, device_op_rules: Sequence[Rule] = ()) -> bool:
    """Raises InvalidIR where layouts or device ops break a rule, those given among them; returns whether any device op
    has changed. ``where``: the kernel and the place in the pipeline."""
    for name, layout in plan.layouts.items():
        buffer = plan.kernel.buffers.get(name)  # None: of a value that is gone
        if buffer is not None and plan.verified.is_new(layout, (buffer, plan.offsets.get(name, 0))):
            check(where, LAYOUT_RULES, plan, buffer, layout)
    for op in plan.kernel.ops:
        facts = [(access, plan.layouts.get(access.buffer), plan.offset(access)) for access in op.accesses()]
        if plan.verified.is_new(op.out, (op.sizes, op.indirect, facts)):
            check(where, ACCESS_RULES, plan, op)
    rules = (*DEVICE_OP_RULES, *device_op_rules)
    changed = [op for op in plan.device_ops if plan.verified.is_new(op, _facts(plan, op))]
    for device_op in changed:
        check(where, rules, plan, device_op)
    return bool(changed)


def _facts(plan: Plan, op: DeviceOp) -> tuple[object, ...]:
    accesses = op.accesses()
    layouts = [plan.layouts.get(access.buffer) for access in accesses]
    given = (
        op.loop_op,
        accesses,
        op.loop_op.tile_loops,
        layouts,
        plan.cores,
        plan.span,
        op.loop_op.out.buffer in plan.lx,
    )
    loops = (tuple(op.counts), tuple(op.origins), op.reduced, tuple(op.slices), op.parameters, op.across)
    return (*given, *loops, *map(_snapshot, op.operands))


def _snapshot(operand: Coordinates) -> tuple[object, ...]:
    """The fields of an operand, whose lists may change."""
    steps, tiles = (tuple(map(tuple, rows)) for rows in (operand.steps, operand.tile_steps))
    sticks = (operand.stick, operand.elements, operand.tile_dim)
    return (tuple(operand.constant), steps, tiles, sticks, tuple(operand.jumps))


def described_on_the_card(op: DeviceOp) -> str:
    """A device op in a message."""
    return f"{described(op.loop_op)}, as {op.counts} on the card,"


# --- layouts


def _wrong_format(plan: Plan, buffer: Buffer, layout: SpyreTensorLayout) -> Iterator[str]:
    if layout.device_dtype != _format(buffer.dtype):
        yield f"{buffer.name}, of {buffer.dtype}, lies as {layout}"


def _without_room(plan: Plan, buffer: Buffer, layout: SpyreTensorLayout) -> Iterator[str]:
    last = plan.offsets.get(buffer.name, 0) + bounds(buffer.size, buffer.stride, 0)[1]
    if 0 not in buffer.size and last >= _host_elements(layout):
        yield f"{buffer.name}, of size {list(buffer.size)}, has no room in {layout}"


@lru_cache
def _format(dtype: torch.dtype) -> object:
    return get_device_dtype(dtype)


@lru_cache(1 << 12)
def _host_elements(layout: SpyreTensorLayout) -> int:
    """How many host elements, counted from the first, a layout has places for."""
    return 1 + sum((n - 1) * unit for n, unit in zip(layout.device_size, layout.stride_map, strict=True) if unit > 0)


def _outside(plan: Plan, op: LoopOp) -> Iterator[str]:
    for position, access in enumerate(op.accesses()):
        layout = plan.layouts.get(access.buffer)
        if layout is None:
            continue
        begin = plan.offsets.get(access.buffer, 0)
        low, high = reached(op, position)
        if begin + low < 0 or begin + high >= _host_elements(layout):
            place = f"which begins at {begin} of {layout}"
            yield f"{described(op)} reaches from {low} to {high} of {access.buffer}, {place}"


def _without_layout(plan: Plan) -> Iterator[str]:
    for op in plan.kernel.ops:
        for access in op.accesses():
            if access.buffer not in plan.layouts:
                yield f"{access.buffer} of {described(op)} has no layout"


# --- the shape of a device op


def _of_operands(faults: Callable[[Plan, DeviceOp, int], Iterator[str]]) -> Callable[[Plan, DeviceOp], Iterator[str]]:
    def of_all(plan: Plan, op: DeviceOp) -> Iterator[str]:
        for position, access in enumerate(op.accesses()):
            for fault in faults(plan, op, position):
                yield f"{described_on_the_card(op)} {fault} of {access.buffer}"

    return of_all


def _wrong_loops(plan: Plan, op: DeviceOp) -> Iterator[str]:
    row, more = op.loop_op.row, len(plan.placement(op.loop_op.out.buffer).replicas)
    if len(op.origins) != len(op.counts) or not op.counts:
        yield f"{described_on_the_card(op)} has {len(op.counts)} loops of {len(op.origins)} origins"
    if min(op.counts, default=1) < 1:
        yield f"{described_on_the_card(op)} has a loop without points"
    first = 0 if op.loop_op.sizes else -1  # the one loop of an op without loops is part of none
    if not all(first <= origin < len(op.loop_op.sizes) + more for origin in op.origins):
        yield f"{described_on_the_card(op)} has loops of {op.origins}, and the op has {len(op.loop_op.sizes)}"
    least = 1 if row.folds_by_choice else BY_NATURE.get(row.kind, 0)
    if not least <= op.reduced <= (len(op.counts) if row.folds_by_choice else least):
        yield f"{described_on_the_card(op)} folds {op.reduced} loops"
    if row.is_paged and len(op.counts) != 8:
        yield f"{described_on_the_card(op)} has {len(op.counts)} loops, not 8"
        return
    parameters = row.parameter_count(op.counts)
    if len(op.parameters) != parameters:
        yield f"{described_on_the_card(op)} has {len(op.parameters)} parameters, not {parameters}"
    if len(op.operands) != len(op.accesses()):
        yield f"{described_on_the_card(op)} has coordinates of {len(op.operands)} operands, not {len(op.accesses())}"


def _without_layouts(plan: Plan, op: DeviceOp) -> Iterator[str]:
    for access in op.accesses():
        if access.buffer not in plan.layouts or access.buffer not in plan.kernel.buffers:
            yield f"{described_on_the_card(op)} uses {access.buffer}, which has no layout"


def _wrong_coordinates(plan: Plan, op: DeviceOp, position: int) -> Iterator[str]:
    operand, accesses = op.operands[position], op.accesses()
    rank = len(plan.layouts[accesses[position].buffer].device_size)
    rows = (operand.constant, *operand.steps, *operand.tile_steps)
    if any(len(row) != rank for row in rows):
        yield f"does not have {rank} coordinates"
    if len(operand.steps) != len(op.counts):
        yield f"has steps along {len(operand.steps)} loops"
    if len(operand.tile_steps) != len(op.loop_op.tile_loops):
        yield f"has steps along {len(operand.tile_steps)} tile loops"
    indices = len(op.loop_op.jumps(position, len(accesses) - 1))
    if len(operand.jumps) != indices:
        yield f"has {len(operand.jumps)} jumps, not {indices},"


def _wrong_sticks(plan: Plan, op: DeviceOp, position: int) -> Iterator[str]:
    operand = op.operands[position]
    rank, elements = len(operand.constant), plan.elements(op.accesses()[position].buffer)
    if not -1 <= operand.stick < len(op.counts) or not -1 <= operand.tile_dim < rank - 1:
        yield f"has loop {operand.stick} along sticks and dimension {operand.tile_dim} over them"
    elif operand.stick >= 0:
        moved = [row[-1] for loop, row in enumerate(operand.steps) if loop != operand.stick]
        if operand.elements != elements:
            yield f"has sticks of {operand.elements} elements, not {elements},"
        if operand.steps[operand.stick][-1] != 1 or operand.constant[-1] or any(moved):
            yield "moves inside sticks with more than the loop along them"


def _off_the_layout(plan: Plan, op: DeviceOp, position: int) -> Iterator[str]:
    size = plan.layouts[op.accesses()[position].buffer].device_size
    for dim, ((low, high), n) in enumerate(zip(_reached(op, position), size, strict=True)):
        if low < 0 or high >= n:
            yield f"goes from {low} to {high} along dimension {dim}, of {n},"


def _reached(op: DeviceOp, position: int) -> list[tuple[int, int]]:
    """By device dimension: the first and the last coordinate of an operand."""
    operand = op.operands[position]
    jumps = op.loop_op.jumps(position, len(op.operands) - 1)
    low, high = list(operand.constant), list(operand.constant)

    def walk(dim: int, step: int, count: int) -> None:
        if step > 0:
            high[dim] += step * (count - 1)
        elif step < 0:
            low[dim] += step * (count - 1)

    def walk_elements(count: int) -> None:
        walk(-1, 1, min(count, operand.elements) if operand.tile_dim >= 0 else count)
        if operand.tile_dim >= 0:
            walk(operand.tile_dim, 1, ceil_div(count, operand.elements))

    for loop, (row, count) in enumerate(zip(operand.steps, op.counts, strict=True)):
        for dim, step in enumerate(row[:-1] if loop == operand.stick else row):
            walk(dim, step, count)
        if loop == operand.stick:
            walk_elements(count)
    for row, (_, count) in zip(operand.tile_steps, op.loop_op.tile_loops, strict=True):
        for dim, step in enumerate(row):
            walk(dim, step, count)
    for index, (dim, step, along_sticks) in zip(jumps, operand.jumps, strict=False):
        if not along_sticks:
            walk(dim, step, index.extent)
        elif step == 1:
            walk_elements(index.extent)
        else:
            walk(operand.tile_dim, step // operand.elements, index.extent)
    return list(zip(low, high, strict=True))


def _written_along_folds(plan: Plan, op: DeviceOp) -> Iterator[str]:
    kept = len(op.counts) - op.reduced
    for n, row in zip(op.counts[kept:], op.operands[-1].steps[kept:], strict=True):
        if n > 1 and any(row):
            yield f"{described_on_the_card(op)} writes {op.loop_op.out.buffer} along loops that it folds"


# --- device ops beside the loop ops that they are pieces of


def _other_steps(plan: Plan) -> Iterator[str]:
    own = {op.out.buffer for op in plan.kernel.ops}
    copies = {name for name, buffer in plan.kernel.buffers.items() if buffer.kind == "internal" and name not in own}
    for op in plan.device_ops:
        if op.loop_op.out.buffer not in copies:  # to LX, which only device ops make
            yield from (f"{described_on_the_card(op)} {fault}" for fault in _other_steps_of(plan, op, copies))


def _other_steps_of(plan: Plan, op: DeviceOp, copies: set[str]) -> Iterator[str]:
    """Steps of all operands are those of the loop op, as often as the loop was split: in host elements, by layouts.
    Copies are made inside tile loops, which do not move them."""
    more, accesses = len(plan.placement(op.loop_op.out.buffer).replicas), op.accesses()
    units = [[max(unit, 0) for unit in plan.layouts[access.buffer].stride_map] for access in accesses]
    walks = list(zip(accesses, units, op.operands, strict=True))

    def times(row: list[int], unit: list[int], stride: int) -> int | None:
        """How many steps of the op's loop a row of steps is; None if it is no whole number, 0 if neither moves."""
        step = sum(a * b for a, b in zip(row, unit, strict=True))
        if stride:
            return None if step % stride or step // stride < 1 else step // stride
        return None if step else 0

    for at, (count, origin) in enumerate(zip(op.counts, op.origins, strict=True)):
        if count > 1 and origin >= more:
            loop = origin - more
            found = {times(operand.steps[at], unit, access.strides[loop]) for access, unit, operand in walks}
            if None in found or len(found - {0}) > 1:
                yield f"moves its operands along loop {at} otherwise than the op along its loop {loop}"
    for position, (access, unit, operand) in enumerate(walks):
        for at, row in enumerate(operand.tile_steps):
            if access.buffer not in copies and times(row, unit, access.strides[at]) not in (0, 1):
                yield f"moves {access.buffer} along tile loop {at} otherwise than the op does"
        jumps = op.loop_op.jumps(position, len(walks) - 1)
        for index, (dim, step, _) in zip(jumps, operand.jumps, strict=False):
            if index.extent > 1 and unit[dim] * step != index.stride:
                yield f"has an index that moves {access.buffer} otherwise than that of the op"


def _other_points(plan: Plan) -> Iterator[str]:
    wanted: Counter[tuple[str, str]] = Counter()
    for loop_op in plan.kernel.ops:
        copies = prod(level.extent for level in plan.placement(loop_op.out.buffer).replicas)
        wanted[loop_op.name, loop_op.out.buffer] += copies * prod(loop_op.sizes)
    found: Counter[tuple[str, str]] = Counter()
    for op in plan.device_ops:
        tiles = prod(count for _, count in op.loop_op.tile_loops)
        found[op.loop_op.name, op.loop_op.out.buffer] += tiles * prod(op.counts)
    for key, points in wanted.items():
        if points != found[key]:
            yield f"{key[0]} to {key[1]} has {found[key]} points on the card, and {points} in loop IR"


DEVICE_OP_RULES = (
    Rule("all buffers of a device op have layouts", _without_layouts),
    Rule("a device op has loops, folds, parameters and operands as its loop op lets it", _wrong_loops),
    Rule(
        "an operand has a step per loop and dimension, and a jump per index if it is a table",
        _of_operands(_wrong_coordinates),
    ),
    Rule("along its sticks an operand moves with one loop, element by element", _of_operands(_wrong_sticks)),
    Rule("device coordinates stay within the layout", _of_operands(_off_the_layout)),
    Rule("a device op writes nothing along loops that it folds", _written_along_folds),
)
LAYOUT_RULES = (
    Rule("a layout has the format of its buffer", _wrong_format),
    Rule("a layout has room for all of its buffer", _without_room),
)
ACCESS_RULES = (Rule("an access stays within the layout of its buffer", _outside),)

LAYOUTS = (Rule("every buffer that an op uses has a layout", _without_layout),)
LIFTED = (
    Rule("device ops move through memory as their loop ops do", _other_steps),
    Rule("device ops have all points of the loop ops", _other_points),
)
