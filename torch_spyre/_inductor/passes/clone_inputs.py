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
from .regions import Part, can_hold, part_of
from .uses import Use

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
    found = []
    for name, shown in read_again(plan).items():
        parts = [
            part_of(plan.device_ops[use.at], side_of(plan, use), plan.elements(name), plan.device_ops[use.at].slices)
            for use in shown
        ]
        positions = tuple(dict.fromkeys(use.at for use in shown))
        holds = all(can_hold(op := plan.device_ops[use.at], side_of(plan, use), op.slices) for use in shown)
        if holds and own_part(parts) and saved_us(parts[0], len(positions)) > 0:
            buffer = plan.kernel.buffers[name]
            clone = plan.kernel.internal(buffer.dtype, buffer.size, buffer.stride, prefix="clone")
            plan.layouts[clone.name] = plan.layouts[name]
            found.append(Clone(name, clone.name, positions))
    return found


def read_again(plan: Plan) -> dict[str, list[Use]]:
    """Arguments that several ops of the same loops read, along the same turns, and none writes."""
    written = {op.op.out.buffer for op in plan.device_ops}
    readers: dict[str, list[Use]] = defaultdict(list)
    for at, op in enumerate(plan.device_ops):
        for position, access in enumerate(op.accesses()[:-1]):
            if plan.kernel.buffers[access.buffer].kind == "input" and access.buffer not in written:
                readers[access.buffer].append(Use(at, position, False))
    found = {}
    for name, shown in readers.items():
        first = plan.device_ops[shown[0].at]
        mine = first.sides[shown[0].position]
        if len({use.at for use in shown}) < 2 or plan.placement(name).replicas:
            continue
        if all(
            op.op.name not in MOVES and op.op.turns == first.op.turns and side.turns == mine.turns and not side.jumps
            for op, side in ((plan.device_ops[use.at], side_of(plan, use)) for use in shown)
        ):
            found[name] = shown
    return found


def side_of(plan: Plan, use: Use) -> Coordinates:
    return plan.device_ops[use.at].sides[use.position]


def own_part(parts: list[Part]) -> bool:
    """Every core wants the same part in all of them, and it is its alone."""
    return len(set(parts)) == 1 and len(set(parts[0].apart)) == len(parts[0].apart)


def saved_us(part: Part, readers: int) -> float:
    """What the copy saves: all reads of device memory but one, less its own beginning."""
    card = description.constants()
    bytes_ = STICK_BYTES * prod(part.size[:-1]) * len(part.apart)
    return (readers - 1) * bytes_ / card["dram_gb_per_s"] / 1000 - card["step_fixed_us"]


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


def _copy(op: DeviceOp, clone: Clone) -> DeviceOp:
    """Loops and cores of the first reader, as far as they move the argument."""
    side = _sides(op, clone.source)[0]
    access = next(each for each in op.accesses() if each.buffer == clone.source)
    loops = [i for i, row in enumerate(side.steps) if any(row)]
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
