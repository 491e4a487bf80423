"""Slicing limits: over how many cores a loop can be divided in whole sticks, and how far a core then reaches."""

from __future__ import annotations

from collections.abc import Sequence

from ...card.description import STICK_BYTES
from ..layout.coordinates import Coordinates
from ..layout.device_ir import DeviceOp, Plan, ceil_div
from ..loop_ir import Access

DIVIDED_OF_PAGED = (0, 6)  # heads of keys, and the keys of a page, whose cores pass their results on


def most_slices(count: int, units: int, quantum: int, cores: int) -> int:
    """The most cores that a loop can be divided over such that none is idle. A core takes ceil(count / cores) points,
    rounded up to whole quanta."""
    for slices in range(min(units, cores), 1, -1):
        points = ceil_div(ceil_div(count, slices), quantum) * quantum
        if points * (slices - 1) < count:
            return slices
    return 1


def quantum_of(op: DeviceOp, loop: int, strides: list[list[int]]) -> int:
    """How many points of a loop belong together so that no two cores write into one stick; 0: all of them."""
    if op.loop_op.row.is_attention and loop >= len(op.counts) - 3:  # each core has whole rows of results and all keys
        return 0
    if op.loop_op.row.is_paged and loop not in DIVIDED_OF_PAGED:
        return 0
    along = [operand.elements for operand in op.operands if operand.stick == loop]
    if along:
        return max(along)
    step = abs(strides[-1][loop])
    if loop >= len(op.counts) - op.reduced:
        return 1
    return 1 if step and step % STICK_BYTES == 0 else 0


def byte_strides(plan: Plan, op: DeviceOp) -> list[list[int]]:
    """Bytes that each operand moves per step of each loop; for a stick loop the distance of two sticks."""
    found = []
    for access, operand in zip(op.accesses(), op.operands, strict=True):
        steps, rows = _dimension_bytes(plan, access), []
        for loop, row in enumerate(operand.steps):
            if loop == operand.stick:
                rows.append(steps[operand.tile_dim] if operand.tile_dim >= 0 else 0)
            else:
                rows.append(sum(a * b for a, b in zip(row, steps, strict=True)))
        found.append(rows)
    return found


def reach_of(counts: Sequence[int], strides: Sequence[int], stick: int, elements: int) -> int:
    """Bytes from the first to the last stick that an operand touches; an index may lead anywhere."""
    reach = STICK_BYTES
    for i, (n, step) in enumerate(zip(counts, strides, strict=True)):
        reach += ((ceil_div(n, elements) if i == stick else n) - 1) * abs(step)
    return reach


def jumped(plan: Plan, op: DeviceOp, access: Access, operand: Coordinates) -> int:
    """How far index tensors may lead, in bytes."""
    if not operand.jumps:
        return 0
    steps = _dimension_bytes(plan, access)
    reach = 0
    position = next(i for i, each in enumerate(op.operands) if each is operand)
    jumps = op.loop_op.jumps(position, len(op.operands) - 1)
    for index, (dim, step, along_sticks) in zip(jumps, operand.jumps, strict=False):
        count = index.extent // operand.elements if along_sticks else index.extent
        reach += (count - 1) * step * steps[operand.tile_dim if along_sticks else dim]
    return reach


def _dimension_bytes(plan: Plan, access: Access) -> list[int]:
    layout = plan.layouts[access.buffer]
    steps = [STICK_BYTES // layout.device_size[-1]]
    for n in reversed(layout.device_size[1:]):
        steps.insert(0, steps[0] * n)
    return steps
