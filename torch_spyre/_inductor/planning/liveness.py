"""Who shows which buffer, and how long it is needed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ...ops.table import OPS
from ..layout.coordinates import Coordinates
from ..layout.device_ir import DeviceOp, Plan


@dataclass(frozen=True)
class Use:
    """One side of an op that shows a buffer."""

    at: int  # which op
    position: int  # which side
    writes: bool


def uses_of(plan: Plan) -> dict[str, list[Use]]:
    """The sides that show each buffer inside the kernel, in order."""
    found: dict[str, list[Use]] = defaultdict(list)
    for at, op in enumerate(plan.device_ops):
        accesses = op.accesses()
        for position, access in enumerate(accesses):
            if plan.kernel.buffers[access.buffer].kind == "internal":
                found[access.buffer].append(Use(at, position, position == len(accesses) - 1))
    return found


def last_turn(plan: Plan, first: int, last: int) -> int:
    """What was made before a loop is read again in each of its turns."""
    mine, turns = plan.device_ops[first].op.turns, plan.device_ops[last].op.turns
    if mine == turns:
        return last
    while last + 1 < len(plan.device_ops) and plan.device_ops[last + 1].op.turns[:1] == turns[:1]:
        last += 1
    return last


def takes_the_place_of(plan: Plan, op: DeviceOp, old: str) -> bool:
    """Whether an op writes its result element by element where it reads ``old``, as large as that, in the same core."""
    mine, elements = op.sides[-1], plan.elements(op.op.out.buffer)
    read = [side for access, side in zip(op.accesses(), op.sides, strict=True) if access.buffer == old]
    return (
        OPS[op.op.name].kind == "pointwise"
        and bool(read)
        and not op.across
        and plan.elements(old) == elements
        and all(_walk(side) == _walk(mine) for side in read)
    )


def _walk(side: Coordinates) -> tuple[object, ...]:
    return side.steps, side.stick, side.tile_dim, side.constant
