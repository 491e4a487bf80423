"""Liveness: which operands use a buffer, and until which op it is needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

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


def lifetimes(plan: Plan, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The first and the last op at which these buffers are needed; those that no op uses are left out."""
    wanted = set(names)
    found: dict[str, tuple[int, int]] = {}
    for at, op in enumerate(plan.device_ops):
        for access in op.accesses():
            if access.buffer in wanted:
                found[access.buffer] = (found.get(access.buffer, (at, at))[0], at)
    for begin, end in _tile_loops(plan):
        for name, (first, last) in found.items():
            if begin <= last and first <= end and not begin <= first <= last <= end:
                found[name] = (min(first, begin), max(last, end))
    return found


def _tile_loops(plan: Plan) -> list[tuple[int, int]]:
    """The first and the last op of every tile loop, inner loops first.

    What is alive in and outside of a loop is alive in all of it: the next iteration begins at its first op again.
    """
    loops_of = [op.loop_op.tile_loops for op in plan.device_ops]
    found = []
    for depth in range(max(map(len, loops_of), default=0), 0, -1):
        for loops, group in groupby(range(len(loops_of)), key=lambda at: loops_of[at][:depth]):
            inside = list(group)
            if len(loops) == depth:
                found.append((inside[0], inside[-1]))
    return found


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
