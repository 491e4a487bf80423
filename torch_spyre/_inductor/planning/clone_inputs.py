"""Arguments that several ops read: copied to LX once, where their cores all want the same part."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import prod

from ...card import description
from ..layout.coordinates import Coordinates
from ..layout.device_ir import STICK_BYTES, DeviceOp, Plan
from ..loop_ir import Access, LoopOp
from .core_tiles import Part, can_hold, fills_its_box, part_of
from .liveness import Use
from .lx_copies import LxCopy

# Moves go from device memory to device memory, past LX.
MOVES = ("copy", "restickify")


def clones(plan: Plan) -> list[LxCopy]:
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
            copy = _copy(plan.device_ops[positions[0]], name, clone.name)
            found.append(LxCopy(name, copy, positions[0], positions))
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
            op.op.name not in MOVES
            and op.op.turns == first.op.turns
            and side.turns == mine.turns
            and not side.jumps
            and not side.constant[-1]  # from the head of a stick on
            and fills_its_box(op, side)  # the copy has what its first reader reads
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


def _copy(op: DeviceOp, source: str, target: str) -> DeviceOp:
    """Loops and cores of the first reader, as far as they move the argument."""
    access, side = next(pair for pair in zip(op.accesses(), op.sides, strict=True) if pair[0].buffer == source)
    loops = [i for i, row in enumerate(side.steps) if any(row)]
    counts = [op.counts[i] for i in loops]
    steps = [list(side.steps[i]) for i in loops]
    stick = loops.index(side.stick) if side.stick in loops else -1
    read = replace(side, steps=steps, stick=stick, constant=list(side.constant))
    written = replace(read, steps=[list(row) for row in steps], constant=list(side.constant))
    written.turns = [[0] * len(side.constant) for _ in side.turns]
    plain = LoopOp(
        "copy",
        tuple(counts),
        Access(target, access.strides[: len(counts)]),
        (Access(source, access.strides[: len(counts)]),),
        source=op.op.source,
        turns=op.op.turns,
    )
    return DeviceOp(plain, counts, list(range(len(counts))), [read, written], 0, [op.slices[i] for i in loops])
