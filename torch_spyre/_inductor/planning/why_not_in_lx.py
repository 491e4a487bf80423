"""Why a buffer inside a kernel is not in LX, in a sentence for people."""

from __future__ import annotations

from math import prod

from ...card.lx_budget import resident_budget
from ..layout.coordinates import Coordinates
from ..layout.device_ir import DeviceOp, LxPlacement, Plan
from .core_tiles import CoreTile, can_hold, core_tile, lx_placement
from .liveness import Use, last_needed, uses_of


def why_not_in_lx(plan: Plan) -> dict[str, str]:
    """A reason for each internal buffer of a plan that goes through device memory."""
    uses = uses_of(plan)
    return {name: _reason(plan, name, shown, uses) for name, shown in uses.items() if name not in plan.lx}


def _reason(plan: Plan, name: str, shown: list[Use], uses: dict[str, list[Use]]) -> str:
    if not shown[0].writes or all(use.writes for use in shown):
        return "it is not written before it is read, or not read at all"
    if plan.placement(name).replicas:
        return "its layout holds elements more than once"
    written: list[CoreTile] = []
    read: list[tuple[DeviceOp, CoreTile]] = []
    for use in shown:
        op = plan.device_ops[use.at]
        operand = op.operands[use.position]
        if op.across and not use.writes:
            continue
        if refused := _refused(op, operand, use):
            return refused
        tile = core_tile(op, operand, plan.elements(name), op.slices)
        if use.writes:
            written.append(tile)
        else:
            read.append((op, tile))
    there = lx_placement(written, [tile for _, tile in read])
    if there is None:
        return _divided_otherwise(plan.device_ops[shown[0].at], written, read)
    if there.bytes > resident_budget():
        return f"a core's part takes {_kib(there.bytes)}, and LX has {_kib(resident_budget())} for buffers that stay"
    return _no_room(plan, shown, there, uses)


def _refused(op: DeviceOp, operand: Coordinates, use: Use) -> str:
    """What an op does with a buffer that cannot be in LX."""
    verb = "written" if use.writes else "read"
    if operand.jumps:
        return f"it is {verb} by index ({_said(op)})"
    if any(map(any, operand.tile_steps)):
        return f"a tile loop moves through it ({_said(op)})"
    if any(step < 0 for row in operand.steps for step in row):
        return f"it is {verb} backwards ({_said(op)})"
    if not can_hold(op, operand, op.slices):
        return f"several cores share a reduction over it ({_said(op)})"
    return ""


def _divided_otherwise(writer: DeviceOp, written: list[CoreTile], read: list[tuple[DeviceOp, CoreTile]]) -> str:
    if lx_placement(written, []) is None:
        return f"the parts that are written make no whole ({_said(writer)})"
    for op, tile in read:
        if lx_placement(written, [tile]) is None:
            return f"a core would need what another one wrote: {_said(writer)} writes it, {_said(op)} reads it"
    return "its readers need different parts of it in one core"


def _no_room(plan: Plan, shown: list[Use], there: LxPlacement, uses: dict[str, list[Use]]) -> str:
    first, last = shown[0].at, last_needed(plan, shown[0].at, shown[-1].at)
    taken = {
        name: placement.bytes
        for name, (_, placement) in plan.lx.items()
        if name in uses and uses[name][0].at <= last and first <= last_needed(plan, uses[name][0].at, uses[name][-1].at)
    }
    largest = sorted(taken, key=lambda name: -taken[name])[:3]
    return (
        f"there is no room for {_kib(there.bytes)} of each core as long as it lives, {last - first + 1} ops: "
        f"{len(taken)} other buffers are in LX then, the largest {', '.join(largest) or 'none'}"
    )


def _said(op: DeviceOp) -> str:
    cores = "x".join(map(str, op.slices)) if prod(op.slices) > 1 else "one"
    return f"{op.loop_op.name} over {'x'.join(map(str, op.counts))} on {cores} cores"


def _kib(number: int) -> str:
    return f"{number / 1024:.0f} KiB"
