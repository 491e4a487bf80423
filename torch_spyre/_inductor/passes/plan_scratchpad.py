"""What stays in LX: buffers that every core reads just where it wrote them.

A buffer inside a kernel goes to LX when its one writer and all its readers are divided so that each core finds its own
part, and when there is room for that part as long as it is needed. Nothing is evicted: what does not fit goes through
device memory. A pointwise result takes the place of an operand that is read for the last time there. An argument that
several ops read is copied to LX once, where that pays.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

from ...backend.tiling import resident_budget
from ...ops.table import OPS
from .clone_inputs import clones, with_clones
from .lift_views import Coordinates
from .plan import STICK_BYTES, Plan
from .regions import begins_of, can_hold, own_size


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
    plain = plan.device_ops
    wanted = clones(plan)
    while wanted:
        plan.device_ops = with_clones(plan, plain, wanted)
        _place_all(plan)
        placed = [clone for clone in wanted if clone.buffer in plan.lx]
        if len(placed) == len(wanted):
            return
        wanted = placed
    plan.device_ops = plain
    _place_all(plan)


def _place_all(plan: Plan) -> None:
    plan.lx.clear()
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
    if not can_hold(writer, side) or _is_moved(side) or plan.placement(name).replicas:
        return None
    size = own_size(writer, side, plan.elements(name))
    begins = begins_of(writer, side)
    for use in readers:
        op = plan.device_ops[use.at]
        theirs = op.sides[use.position]
        if not can_hold(op, theirs) or _is_moved(theirs):
            return None
        wanted = begins_of(op, theirs)
        if len(wanted) > len(begins) or wanted != begins[: len(wanted)]:
            return None
        if any(mine < other for mine, other in zip(size, own_size(op, theirs, plan.elements(name)), strict=True)):
            return None
    return _Resident(name, size, first.at, _last_turn(plan, first.at, readers[-1].at))


def _is_moved(side: Coordinates) -> bool:
    """Whether loops around the op move it on."""
    return any(map(any, side.turns))


def _last_turn(plan: Plan, first: int, last: int) -> int:
    """What was made before a loop is read again in each of its turns."""
    mine, turns = plan.device_ops[first].op.turns, plan.device_ops[last].op.turns
    if mine == turns:
        return last
    while last + 1 < len(plan.device_ops) and plan.device_ops[last + 1].op.turns[:1] == turns[:1]:
        last += 1
    return last


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
