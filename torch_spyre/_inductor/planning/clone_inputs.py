"""Arguments that several ops read: copied to LX once, where their cores all want the same tile."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import prod

from ...card import description
from ...card.description import STICK_BYTES
from ..layout.coordinates import Coordinates
from ..layout.device_ir import DeviceOp, Plan
from ..loop_ir import Access, LoopOp
from .core_tiles import CoreTile, can_hold, core_tile, fills_its_box
from .liveness import Use
from .lx_copies import LxCopy


def clones(plan: Plan) -> list[LxCopy]:
    """The copies that would pay, each with a buffer of its own in ``plan.kernel``."""
    found = []
    for name, shown in read_again(plan).items():
        tiles = [
            core_tile(
                plan.device_ops[use.at], operand_of(plan, use), plan.elements(name), plan.device_ops[use.at].slices
            )
            for use in shown
        ]
        positions = tuple(dict.fromkeys(use.at for use in shown))
        holds = all(can_hold(op := plan.device_ops[use.at], operand_of(plan, use), op.slices) for use in shown)
        if holds and own_tile(tiles) and saved_us(tiles[0], len(positions)) > 0:
            buffer = plan.kernel.buffers[name]
            clone = plan.kernel.internal(buffer.dtype, buffer.size, buffer.stride, prefix="clone")
            plan.layouts[clone.name] = plan.layouts[name]
            copy = _copy(plan.device_ops[positions[0]], name, clone.name)
            found.append(LxCopy(name, copy, positions[0], positions))
    return found


def read_again(plan: Plan) -> dict[str, list[Use]]:
    """Arguments that several ops in the same tile loops read, moved by them alike, and that none writes."""
    written = {op.loop_op.out.buffer for op in plan.device_ops}
    readers: dict[str, list[Use]] = defaultdict(list)
    for at, op in enumerate(plan.device_ops):
        for position, access in enumerate(op.accesses()[:-1]):
            if plan.kernel.buffers[access.buffer].kind == "input" and access.buffer not in written:
                readers[access.buffer].append(Use(at, position, False))
    found = {}
    for name, shown in readers.items():
        first = plan.device_ops[shown[0].at]
        mine = first.operands[shown[0].position]
        if len({use.at for use in shown}) < 2 or plan.placement(name).replicas:
            continue
        if all(
            not op.loop_op.row.is_move  # moves go from device memory to device memory, past LX
            and op.loop_op.tile_loops == first.loop_op.tile_loops
            and operand.tile_steps == mine.tile_steps
            and not operand.jumps
            and not operand.constant[-1]  # from the head of a stick on
            and fills_its_box(op, operand)  # the copy has what its first reader reads
            for op, operand in ((plan.device_ops[use.at], operand_of(plan, use)) for use in shown)
        ):
            found[name] = shown
    return found


def operand_of(plan: Plan, use: Use) -> Coordinates:
    return plan.device_ops[use.at].operands[use.position]


def own_tile(tiles: list[CoreTile]) -> bool:
    """Every core wants the same tile in all of them, and it is its alone."""
    return len(set(tiles)) == 1 and len(set(tiles[0].apart)) == len(tiles[0].apart)


def saved_us(tile: CoreTile, readers: int) -> float:
    """What the copy saves: all reads of device memory but one, less its own beginning."""
    card = description.constants()
    bytes_ = STICK_BYTES * prod(tile.size[:-1]) * len(tile.apart)
    return (readers - 1) * bytes_ / card["dram_gb_per_s"] / 1000 - card["step_fixed_us"]


def _copy(op: DeviceOp, source: str, target: str) -> DeviceOp:
    """Loops and cores of the first reader, as far as they move the argument."""
    access, operand = next(pair for pair in zip(op.accesses(), op.operands, strict=True) if pair[0].buffer == source)
    loops = [i for i, row in enumerate(operand.steps) if any(row)]
    counts = [op.counts[i] for i in loops]
    steps = [list(operand.steps[i]) for i in loops]
    stick = loops.index(operand.stick) if operand.stick in loops else -1
    read = replace(operand, steps=steps, stick=stick, constant=list(operand.constant))
    written = replace(read, steps=[list(row) for row in steps], constant=list(operand.constant))
    written.tile_steps = [[0] * len(operand.constant) for _ in operand.tile_steps]
    plain = LoopOp(
        "copy",
        tuple(counts),
        Access(target, access.strides[: len(counts)]),
        (Access(source, access.strides[: len(counts)]),),
        source=op.loop_op.source,
        aten=op.loop_op.aten,
        tile_loops=op.loop_op.tile_loops,
    )
    return DeviceOp(plain, counts, list(range(len(counts))), [read, written], 0, [op.slices[i] for i in loops])
