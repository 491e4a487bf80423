"""Ops that go on where their operand was made: divided as its writer, so that it may stay in LX."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ...ops.table import OPS
from .folded_later import Dims, moved
from .lift_views import Coordinates
from .plan import DeviceOp, Plan
from .regions import begins_of, can_hold


def following(plan: Plan, op: DeviceOp, writers: dict[str, DeviceOp], folded: Dims) -> list[int] | None:
    """The division of the writer of the largest operand that was made in this kernel; None where it cannot be had, or
    would divide what is ``folded`` later."""
    if OPS[op.op.name].kind not in ("pointwise", "reduction") or op.op.name == "restickify":
        return None
    made = [
        (prod(plan.layouts[access.buffer].device_size), side, writers[access.buffer])
        for access, side in zip(op.accesses()[:-1], op.sides, strict=False)
        if access.buffer in writers and plan.kernel.buffers[access.buffer].kind == "internal"
    ]
    if not made:
        return None
    _, side, writer = max(made, key=lambda each: each[0])
    slices = _as_divided(op, side, writer)
    if slices is None:
        return None
    out = op.sides[-1]
    if any(cores > 1 and moved(out, i) & folded[op.op.out.buffer] for i, cores in enumerate(slices)):
        return None
    divided = replace(op, slices=slices)
    mine = writer.sides[-1]
    if not can_hold(divided, side) or not can_hold(writer, mine) or not _writes_whole_sticks(plan, divided):
        return None
    return slices if begins_of(divided, side) == begins_of(writer, mine) else None


def _as_divided(op: DeviceOp, side: Coordinates, writer: DeviceOp) -> list[int] | None:
    """Cores for the loops that move the operand as the writer's loops moved it."""
    slices = [1] * len(op.counts)
    mine = writer.sides[-1]
    for loop, cores in enumerate(writer.slices):
        if cores == 1:
            continue
        same = [
            i
            for i in range(len(op.counts) - op.reduced)
            if op.counts[i] == writer.counts[loop] and side.steps[i] == mine.steps[loop]
        ]
        if len(same) != 1 or (side.stick == same[0]) != (mine.stick == loop):
            return None
        slices[same[0]] = cores
    return slices


def _writes_whole_sticks(plan: Plan, op: DeviceOp) -> bool:
    """No two cores write into one stick of the result."""
    from .divide_work import byte_strides, quantum_of, share

    strides = byte_strides(plan, op)
    for loop, cores in enumerate(op.slices):
        if cores > 1:
            quantum = quantum_of(op, loop, strides)
            if not quantum or share(op.counts[loop], -(-op.counts[loop] // quantum), quantum, cores) != cores:
                return False
    return True
