"""Arguments that several ops read: copied to LX once, where their cores all want the same part.

Which of the copies find room is for :mod:`plan_scratchpad` to say.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from math import prod

from ...card import description
from ..loop_ir import Access, LoopOp
from .lift_views import Coordinates
from .plan import STICK_BYTES, DeviceOp, Plan
from .regions import can_hold, part_of

# Moves go from device memory to device memory, past LX.
MOVES = ("copy", "restickify")


@dataclass(frozen=True)
class Clone:
    """A copy of an argument, made in front of the first of its readers."""

    source: str
    buffer: str
    readers: tuple[int, ...]  # positions among the ops without copies


def clones(plan: Plan) -> list[Clone]:
    """The copies that would pay, each with a buffer of its own in ``plan.kernel``."""
    written = {op.op.out.buffer for op in plan.device_ops}
    readers: dict[str, list[int]] = defaultdict(list)
    for at, op in enumerate(plan.device_ops):
        for name in dict.fromkeys(access.buffer for access in op.accesses()[:-1]):
            if plan.kernel.buffers[name].kind == "input" and name not in written:
                readers[name].append(at)
    found = []
    for name, positions in readers.items():
        if len(positions) > 1 and _agree(plan, name, positions) and _pays(plan, name, positions):
            buffer = plan.kernel.buffers[name]
            clone = plan.kernel.internal(buffer.dtype, buffer.size, buffer.stride, prefix="clone")
            plan.layouts[clone.name] = plan.layouts[name]
            found.append(Clone(name, clone.name, tuple(positions)))
    return found


def with_clones(plan: Plan, ops: list[DeviceOp], wanted: list[Clone]) -> list[DeviceOp]:
    """The ops with the copies in front of their first readers, which read the copies."""
    found: list[DeviceOp] = []
    for at, op in enumerate(ops):
        for clone in wanted:
            if at == clone.readers[0]:
                found.append(_copy(op, clone))
            if at in clone.readers:
                op = _reading(op, clone)
        found.append(op)
    return found


def _sides(op: DeviceOp, name: str) -> list[Coordinates]:
    return [side for access, side in zip(op.accesses(), op.sides, strict=True) if access.buffer == name]


def _agree(plan: Plan, name: str, positions: list[int]) -> bool:
    """Every core wants the same part in all of them, and all of it is its own."""
    first = plan.device_ops[positions[0]]
    mine = _sides(first, name)[0]
    elements = plan.elements(name)
    part = part_of(first, mine, elements, first.slices)
    if plan.placement(name).replicas or _is_shared(first, mine):
        return False
    for at in positions:
        op = plan.device_ops[at]
        for side in _sides(op, name):
            if (
                op.op.name in MOVES
                or not can_hold(op, side, op.slices)
                or op.op.turns != first.op.turns
                or side.turns != mine.turns
            ):
                return False
            if part_of(op, side, elements, op.slices) != part:
                return False
    return True


def _is_shared(op: DeviceOp, side: Coordinates) -> bool:
    return any(slices > 1 and not any(row) for slices, row in zip(op.slices, side.steps, strict=True))


def _pays(plan: Plan, name: str, positions: list[int]) -> bool:
    """Whether the reads that are saved take longer than the copy's own beginning."""
    op = plan.device_ops[positions[0]]
    side = _sides(op, name)[0]
    card = description.constants()
    part = part_of(op, side, plan.elements(name), op.slices)
    bytes_ = STICK_BYTES * prod(part.size[:-1]) * prod(op.slices)
    return (len(positions) - 1) * bytes_ / card["dram_gb_per_s"] > 1000 * card["step_fixed_us"]


def _copy(op: DeviceOp, clone: Clone) -> DeviceOp:
    """Loops and cores of the first reader, as far as they move the argument."""
    side = _sides(op, clone.source)[0]
    access = next(each for each in op.accesses() if each.buffer == clone.source)
    loops = [i for i, row in enumerate(side.steps) if any(row)] or [0]
    counts = [op.counts[i] for i in loops]
    steps = [list(side.steps[i]) for i in loops]
    stick = loops.index(side.stick) if side.stick in loops else -1
    read = replace(side, steps=steps, stick=stick, constant=list(side.constant))
    written = replace(read, steps=[list(row) for row in steps], constant=[0] * len(side.constant))
    written.turns = [[0] * len(side.constant) for _ in side.turns]
    plain = LoopOp(
        "copy",
        tuple(counts),
        Access(clone.buffer, access.strides[: len(counts)]),
        (Access(clone.source, access.strides[: len(counts)]),),
        source=op.op.source,
        turns=op.op.turns,
    )
    return DeviceOp(plain, counts, list(range(len(counts))), [read, written], 0, [op.slices[i] for i in loops])


def _reading(op: DeviceOp, clone: Clone) -> DeviceOp:
    def cloned(access: Access) -> Access:
        return replace(access, buffer=clone.buffer) if access.buffer == clone.source else access

    sides = []
    for access, side in zip(op.accesses(), op.sides, strict=True):
        if access.buffer == clone.source:
            side = replace(side, constant=[0] * len(side.constant))
            side.turns = [[0] * len(side.constant) for _ in side.turns]
        sides.append(side)
    ins = tuple(cloned(each) if isinstance(each, Access) else each for each in op.op.ins)
    return replace(op, op=replace(op.op, ins=ins), sides=sides)
