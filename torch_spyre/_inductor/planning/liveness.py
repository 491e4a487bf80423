"""Liveness: which operands use a buffer, and until which op it is needed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ..layout.coordinates import Coordinates
from ..layout.device_ir import DeviceOp, Plan


@dataclass(frozen=True)
class Use:
    """One operand of an op that uses a buffer."""

    at: int  # which op
    position: int  # which operand
    writes: bool


def uses_of(plan: Plan) -> dict[str, list[Use]]:
    """The uses of every internal buffer, in the order of the ops."""
    found: dict[str, list[Use]] = defaultdict(list)
    for at, op in enumerate(plan.device_ops):
        accesses = op.accesses()
        for position, access in enumerate(accesses):
            if plan.kernel.buffers[access.buffer].kind == "internal":
                found[access.buffer].append(Use(at, position, position == len(accesses) - 1))
    return found


def last_needed(plan: Plan, first: int, last: int) -> int:
    """The op until which a buffer is needed that is first used at ``first`` and last at ``last``: the end of the loop
    around the last use, if the buffer was made before that loop, because every iteration reads it again."""
    mine, loops = plan.device_ops[first].loop_op.tile_loops, plan.device_ops[last].loop_op.tile_loops
    if mine == loops:
        return last
    while last + 1 < len(plan.device_ops) and plan.device_ops[last + 1].loop_op.tile_loops[:1] == loops[:1]:
        last += 1
    return last


def takes_the_place_of(plan: Plan, op: DeviceOp, old: str) -> bool:
    """Whether an op may write its result over ``old``: it reads each element of it just before it writes there."""
    mine, elements = op.operands[-1], plan.elements(op.loop_op.out.buffer)
    read = [operand for access, operand in zip(op.accesses(), op.operands, strict=True) if access.buffer == old]
    return (
        op.loop_op.row.is_pointwise
        and bool(read)
        and not op.across
        and plan.elements(old) == elements
        and all(_walk(operand) == _walk(mine) for operand in read)
    )


def _walk(operand: Coordinates) -> tuple[object, ...]:
    return operand.steps, operand.stick, operand.tile_dim, operand.constant
