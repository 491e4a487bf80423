"""What stays in LX: buffers that every core reads just where it wrote them.

A buffer inside a kernel goes to LX when its one writer and all its readers are divided so that each core finds its own
part, and when there is room for that part as long as it is needed. Nothing is evicted: what does not fit goes through
device memory. A pointwise result takes the place of an operand that is read for the last time there.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

from ...backend.tiling import resident_budget
from ...ir.folds import core_slices
from ...ops.table import OPS
from .divide_work import STICK_BYTES, ceil_div
from .lift_views import Coordinates
from .plan import DeviceOp, Plan


@dataclass(frozen=True)
class _Use:
    """One side of an op that shows a buffer."""

    at: int  # which op
    position: int  # which side
    writes: bool


@dataclass
class _Resident:
    """A buffer that may stay: its size per core, from where to where it lives."""

    name: str
    size: list[int]
    first: int
    last: int
    address: int = -1

    @property
    def bytes(self) -> int:
        return STICK_BYTES * prod(self.size[:-1])


def plan_scratchpad(plan: Plan) -> None:
    """Fills ``plan.lx``: address and size per core of the buffers that stay."""
    uses: dict[str, list[_Use]] = defaultdict(list)
    for at, op in enumerate(plan.device_ops):
        accesses = op.accesses()
        for position, access in enumerate(accesses):
            if plan.kernel.buffers[access.buffer].kind == "internal":
                uses[access.buffer].append(_Use(at, position, position == len(accesses) - 1))
    budget = resident_budget()
    placed: list[_Resident] = []
    for name, shown in uses.items():
        resident = _resident(plan, name, shown)
        if resident and resident.bytes <= budget and _place(plan, resident, placed, budget):
            placed.append(resident)
            plan.lx[name] = (resident.address, resident.size)


def _resident(plan: Plan, name: str, shown: list[_Use]) -> _Resident | None:
    """None if some core would look for what another one wrote."""
    first = shown[0]
    readers = shown[1:]
    if not first.writes or not readers or any(use.writes for use in readers):
        return None
    writer = plan.device_ops[first.at]
    side = writer.sides[-1]
    if not _can_hold(plan, writer, side) or plan.placement(name).replicas:
        return None
    size = _own_size(writer, side, plan.elements(name))
    begins = _begins(writer, side)
    for use in readers:
        op = plan.device_ops[use.at]
        theirs = op.sides[use.position]
        if not _can_hold(plan, op, theirs):
            return None
        wanted = _begins(op, theirs)
        if len(wanted) > len(begins) or wanted != begins[: len(wanted)]:
            return None
        if any(mine < other for mine, other in zip(size, _own_size(op, theirs, plan.elements(name)), strict=True)):
            return None
    return _Resident(name, size, first.at, _last_turn(plan, first.at, readers[-1].at))


def _last_turn(plan: Plan, first: int, last: int) -> int:
    """What was made before a loop is read again in each of its turns."""
    mine, turns = plan.device_ops[first].op.turns, plan.device_ops[last].op.turns
    if mine == turns:
        return last
    while last + 1 < len(plan.device_ops) and plan.device_ops[last + 1].op.turns[:1] == turns[:1]:
        last += 1
    return last


def _can_hold(plan: Plan, op: DeviceOp, side: Coordinates) -> bool:
    folds_together = any(slices > 1 for slices in op.slices[len(op.counts) - op.reduced :])
    return (
        not folds_together
        and not side.jumps
        and not any(map(any, side.turns))
        and all(step >= 0 for row in side.steps for step in row)
    )


def _points(op: DeviceOp) -> list[int]:
    """What every core but the last takes of each loop: whole sticks of all that lies along it."""
    points = []
    for loop, (count, slices) in enumerate(zip(op.counts, op.slices, strict=True)):
        unit = max((side.elements for side in op.sides if side.stick == loop), default=1)
        share = ceil_div(count, slices)
        points.append(min(ceil_div(share, unit) * unit, count) if slices > 1 else share)
    return points


def _own_size(op: DeviceOp, side: Coordinates, elements: int) -> list[int]:
    """The device size of a core's part, in whole sticks."""
    points = _points(op)
    size = [1] * len(side.constant)
    for loop, row in enumerate(side.steps):
        for dim, step in enumerate(row):
            if loop != side.stick:
                size[dim] += step * (points[loop] - 1)
    if side.stick >= 0 and side.tile_dim >= 0:
        size[side.tile_dim] += ceil_div(points[side.stick], side.elements) - 1
    return [*size[:-1], elements]


def _begins(op: DeviceOp, side: Coordinates) -> list[tuple[int, ...]]:
    """Where each core's part begins, in device coordinates."""
    points = _points(op)
    found = []
    for slices in core_slices(tuple(op.slices)):
        at = list(side.constant)
        for loop, (slice_, row) in enumerate(zip(slices, side.steps, strict=True)):
            begin = slice_ * points[loop]
            if loop == side.stick:
                if side.tile_dim >= 0:
                    at[side.tile_dim] += begin // side.elements
            else:
                for dim, step in enumerate(row):
                    at[dim] += begin * step
        found.append(tuple(at))
    return found


def _place(plan: Plan, new: _Resident, placed: list[_Resident], budget: int) -> bool:
    """The place of an operand that is read for the last time, or the lowest address with room."""
    alive = [old for old in placed if old.last >= new.first]
    for old in alive:
        if _gives_its_place(plan, old, new):
            new.address = old.address
            return True
    new.address = 0
    for old in sorted(alive, key=lambda old: old.address):
        if old.address - new.address >= new.bytes:
            break
        new.address = max(new.address, old.address + old.bytes)
    return new.address + new.bytes <= budget


def _gives_its_place(plan: Plan, old: _Resident, new: _Resident) -> bool:
    """Whether the op that makes the new one reads the old one for the last time, element by element."""
    op = plan.device_ops[new.first]
    if old.last != new.first or OPS[op.op.name].kind != "pointwise" or old.size != new.size:
        return False
    mine = op.sides[-1]
    return all(
        (side.steps, side.stick, plan.elements(access.buffer)) == (mine.steps, mine.stick, plan.elements(new.name))
        for access, side in zip(op.accesses(), op.sides, strict=True)
        if access.buffer == old.name
    )
