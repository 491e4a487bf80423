"""LX placement: addresses for the buffers that every core reads just where it wrote them.

A buffer inside a kernel goes to LX when the ops that use it are divided so that each core finds its own tile, and when
there is room for that tile as long as it is needed. Nothing is evicted: what does not fit goes through device memory. A
pointwise result takes the place of an operand that is read for the last time there. An argument that several ops read
is copied to LX once, where that pays, and a buffer moves over the ring where another division is worth it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...card.lx_budget import resident_budget
from ..layout.device_ir import LxPlacement, Plan
from .clone_inputs import clones
from .core_tiles import CoreTile, can_hold, core_tile, lies_still, lx_placement
from .liveness import Use, last_needed, takes_the_place_of, uses_of
from .lx_copies import LxCopy, with_copies
from .relayout import moves


@dataclass
class Resident:
    """A buffer that may stay: its place, and the first and the last op that it lives at."""

    name: str
    there: LxPlacement
    first: int
    last: int


@dataclass
class _Slot:
    """A place in LX for buffers that take it over from one another, each at the op that reads the one before."""

    members: list[Resident]
    address: int = 0

    @property
    def bytes(self) -> int:
        return self.members[0].there.bytes

    @property
    def end(self) -> int:
        return self.address + self.bytes

    def meets(self, other: _Slot) -> bool:
        """Whether both are alive at some op."""
        return self.members[0].first <= other.members[-1].last and other.members[0].first <= self.members[-1].last


def plan_scratchpad(plan: Plan) -> None:
    """Fills ``plan.lx``: address and tile per core of the buffers that stay."""
    plain = plan.device_ops
    wanted = [*clones(plan), *moves(plan)]
    while wanted:
        plan.device_ops = with_copies(plain, wanted)
        _place_all(plan)
        placed = [copy for copy in wanted if copy.buffer in plan.lx and _has_source(plan, copy)]
        if len(placed) == len(wanted):
            return
        wanted = placed
    plan.device_ops = plain
    _place_all(plan)


def _has_source(plan: Plan, copy: LxCopy) -> bool:
    """The ring goes from LX to LX."""
    return not copy.op.across or copy.source in plan.lx


def _place_all(plan: Plan) -> None:
    """The largest first, at the lowest address that is free as long as it lives."""
    plan.lx.clear()
    budget = resident_budget()
    slots: list[_Slot] = []
    for name, shown in uses_of(plan).items():
        mine = resident(plan, name, shown)
        if mine is None or mine.there.bytes > budget:
            continue
        taken = next((slot for slot in slots if is_taken_over(plan, slot.members[-1], mine)), None)
        if taken is None:
            slots.append(_Slot([mine]))
        else:
            taken.members.append(mine)
    placed: list[_Slot] = []
    for slot in sorted(slots, key=lambda slot: -slot.bytes):
        for other in sorted((each for each in placed if each.meets(slot)), key=lambda each: each.address):
            if other.address - slot.address >= slot.bytes:
                break
            slot.address = max(slot.address, other.end)
        if slot.end <= budget:
            placed.append(slot)
            plan.lx.update((each.name, (slot.address, each.there)) for each in slot.members)


def resident(plan: Plan, name: str, shown: list[Use]) -> Resident | None:
    """None if some core would look for what another one wrote."""
    if not shown[0].writes or all(use.writes for use in shown) or plan.placement(name).replicas:
        return None
    written: list[CoreTile] = []
    read: list[CoreTile] = []
    for use in shown:
        op = plan.device_ops[use.at]
        operand = op.operands[use.position]
        if op.across and not use.writes:  # from whatever core has it
            continue
        if not lies_still(operand) or not can_hold(op, operand, op.slices):
            return None
        (written if use.writes else read).append(core_tile(op, operand, plan.elements(name), op.slices))
    there = lx_placement(written, read)
    if there is None:
        return None
    return Resident(name, there, shown[0].at, last_needed(plan, shown[0].at, shown[-1].at))


def is_taken_over(plan: Plan, old: Resident, new: Resident) -> bool:
    """Whether the op that makes the new one reads the old one for the last time, element by element. What was made
    in front of a loop is read again by its next iteration."""
    maker, reader = plan.device_ops[old.first], plan.device_ops[new.first]
    return (
        old.last == new.first
        and maker.loop_op.tile_loops == reader.loop_op.tile_loops
        and old.there == new.there
        and takes_the_place_of(plan, reader, old.name)
    )
