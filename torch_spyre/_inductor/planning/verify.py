"""What holds of work division and memory, whichever pass has them. A rule may count on those above it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import TypeVar

from ...card.description import STICK_BYTES
from ...card.lx_budget import resident_budget
from ..layout import verify as layout
from ..layout.device_ir import DeviceOp, Plan
from ..layout.verify import described_on_the_card
from ..verification import Rule, check
from .core_tiles import points_of
from .divisions import within_span
from .liveness import last_needed, lifetimes, uses_of
from .plan_scratchpad import Resident, is_taken_over, resident
from .slicing_limits import byte_strides, quantum_of

Placed = TypeVar("Placed")


def verify(plan: Plan, where: str) -> None:
    """Raises InvalidIR where a plan breaks a rule: layouts, device ops, cores and memory. ``where``: the kernel and the
    place in the pipeline."""
    changed = layout.verify(plan, where, DEVICE_OP_RULES)
    places = (dict(plan.lx), dict(plan.pool), plan.pool_bytes, dict(plan.arguments), tuple(map(id, plan.device_ops)))
    if plan.verified.is_new(plan, places) or changed:
        check(where, MEMORY_RULES, plan)


# --- cores


def _wrong_slices(plan: Plan, op: DeviceOp) -> Iterator[str]:
    if not op.slices:
        return
    if len(op.slices) != len(op.counts) or min(op.slices) < 1:
        yield f"{described_on_the_card(op)} has the slices {op.slices}"
    elif prod(op.slices) > plan.cores:
        yield f"{described_on_the_card(op)} is divided over {prod(op.slices)} of {plan.cores} cores"
    if op.across and len(op.across) != len(op.counts):
        yield f"{described_on_the_card(op)} goes across {op.across} cores along {len(op.counts)} loops"


def _idle_cores(plan: Plan, op: DeviceOp) -> Iterator[str]:
    points = points_of(op, op.slices) if op.slices else []
    for count, slices, mine in zip(op.counts, op.slices, points, strict=False):
        if mine * (slices - 1) >= count:
            yield f"{described_on_the_card(op)} has {count} points for {slices} cores that take {mine} each"


def _wrongly_shared(plan: Plan, op: DeviceOp) -> Iterator[str]:
    row, kept = op.loop_op.row, len(op.counts) - op.reduced
    folded = [cores for cores in op.slices[kept:] if cores > 1]
    if len(folded) > (row.is_reduction or row.is_matmul or row.is_paged):
        yield f"{described_on_the_card(op)} is divided as {op.slices}, of which the last {op.reduced} are folded"
    if row.is_scan and op.slices and op.slices[kept - 1] > 1:
        yield f"{described_on_the_card(op)} is divided as {op.slices}, along what it scans"


def _shared_sticks(plan: Plan, op: DeviceOp) -> Iterator[str]:
    if op.loop_op.out.buffer in plan.lx or max(op.slices, default=1) == 1:
        return
    strides = byte_strides(plan, op)
    for loop, cores in enumerate(op.slices):
        if cores > 1 and not quantum_of(op, loop, strides):
            yield f"{described_on_the_card(op)} is divided as {op.slices}: two cores would write into one stick"


def _over_the_span(plan: Plan, op: DeviceOp) -> Iterator[str]:
    if op.slices and not within_span(plan, op, op.slices):
        yield f"{described_on_the_card(op)} divided as {op.slices} reaches over more than {plan.span} bytes of a tensor"


def _undivided(plan: Plan) -> Iterator[str]:
    for op in plan.device_ops:
        if len(op.slices) != len(op.counts):
            yield f"{op.loop_op.name} over {op.counts} has the slices {op.slices}"


# --- memory


def _wrong_arguments(plan: Plan) -> Iterator[str]:
    given = [buffer.name for buffer in (*plan.kernel.inputs(), *plan.kernel.outputs())]
    if list(plan.arguments) != given or list(plan.arguments.values()) != list(range(len(given))):
        yield f"the launch has {plan.arguments}, and the kernel {given}"


def _unknown_places(plan: Plan) -> Iterator[str]:
    for name in (*plan.lx, *plan.pool):
        if name not in plan.layouts or name not in plan.kernel.buffers:
            yield f"{name} has a place inside the kernel and no layout"
        elif plan.kernel.buffers[name].kind != "internal":
            yield f"{name}, an argument, has a place inside the kernel"


def _wrong_addresses(plan: Plan) -> Iterator[str]:
    budget = resident_budget() if plan.lx else 0
    for name, (address, there) in plan.lx.items():
        if address < 0 or address % STICK_BYTES or address + there.bytes > budget:
            yield f"{name} lies at {address} of LX, {there.bytes} of {budget} bytes"
    for name, offset in plan.pool.items():
        bytes_ = plan.layouts[name].device_bytes()
        if offset < 0 or offset % STICK_BYTES or offset + bytes_ > plan.pool_bytes:
            yield f"{name} lies at {offset} of the pool, {bytes_} of {plan.pool_bytes} bytes"


def _undivided_in_lx(plan: Plan) -> Iterator[str]:
    for op in plan.device_ops if plan.lx else ():
        if not op.slices and any(access.buffer in plan.lx for access in op.accesses()):
            yield f"{described_on_the_card(op)} is not divided, and uses what is in LX"


def _foreign_tiles(plan: Plan) -> Iterator[str]:
    uses = uses_of(plan) if plan.lx else {}
    for name, (_, there) in plan.lx.items():
        found = resident(plan, name, uses[name]) if name in uses else None
        if found is None or found.there != there:
            yield f"{name} is in LX as {there}, its ops want {found and found.there}"


def _overlaps_in_lx(plan: Plan) -> Iterator[str]:
    uses = uses_of(plan) if plan.lx else {}
    places = []
    for name, (address, there) in plan.lx.items():
        first, last = uses[name][0].at, uses[name][-1].at
        mine = Resident(name, there, first, last_needed(plan, first, last))
        places.append((first, mine.last, address, there.bytes, mine))
    for one, other in _overlaps(places):
        same = plan.lx[one.name][0] == plan.lx[other.name][0]
        if not (same and (is_taken_over(plan, one, other) or is_taken_over(plan, other, one))):
            yield f"{one.name} and {other.name} lie in one place of LX while both are needed"


def _overlaps_in_the_pool(plan: Plan) -> Iterator[str]:
    alive = lifetimes(plan, plan.pool) if plan.pool else {}
    places = [
        (first, last, plan.pool[name], plan.layouts[name].device_bytes(), name) for name, (first, last) in alive.items()
    ]
    for one, other in _overlaps(places):
        yield f"{one} and {other} lie in one place of the pool while both are needed"


def _overlaps(places: Iterable[tuple[int, int, int, int, Placed]]) -> Iterator[tuple[Placed, Placed]]:
    """Pairs that have common bytes at a common time, of (first op, last op, address, bytes, what)."""
    alive: list[tuple[int, int, int, int, Placed]] = []
    for place in sorted(places, key=lambda each: each[0]):
        first, _, address, bytes_, what = place
        alive = [each for each in alive if each[1] >= first]
        for _, _, begin, length, other in alive:
            if begin < address + bytes_ and address < begin + length:
                yield other, what
        alive.append(place)


def _wrong_rings(plan: Plan) -> Iterator[str]:
    for op in plan.device_ops:
        if op.across and not all(access.buffer in plan.lx for access in op.accesses()):
            yield f"{op.loop_op.name} to {op.loop_op.out.buffer} goes over the ring, not from LX to LX"


def _unplaced(plan: Plan) -> Iterator[str]:
    for op in plan.device_ops:
        for access in op.accesses():
            places = (access.buffer in plan.lx, access.buffer in plan.pool, access.buffer in plan.arguments)
            if sum(places) != 1:
                yield f"{access.buffer} of {op.loop_op.name} has {sum(places)} places"


DEVICE_OP_RULES = (
    Rule("an op has a number of cores per loop, and all of them are there", _wrong_slices),
    Rule("every core has something to do", _idle_cores),
    Rule("cores share one folded loop of a sum or product at most, and none of a scan", _wrongly_shared),
    Rule("no two cores write into one stick", _shared_sticks),
    Rule("no core reaches over more of a tensor than the span", _over_the_span),
)
MEMORY_RULES = (
    Rule("the launch gives inputs, then outputs", _wrong_arguments),
    Rule("what has a place inside a kernel is one of its values", _unknown_places),
    Rule("what is inside a kernel lies at whole sticks of its memory, within its size", _wrong_addresses),
    Rule("what is in LX is used by ops that are divided", _undivided_in_lx),
    Rule("what is in LX is the tile that each core wrote itself", _foreign_tiles),
    Rule("what is in LX at the same time lies apart, but a result may take the place of its operand", _overlaps_in_lx),
    Rule("what is in the pool at the same time lies apart", _overlaps_in_the_pool),
    Rule("the ring goes from LX to LX", _wrong_rings),
)

DIVIDED = (Rule("every device op says how many cores share each loop", _undivided),)
PLACED = (Rule("every buffer is an argument, in LX or in the kernel's own memory", _unplaced),)
