"""Work division: which loops are shared by how many cores.

Output dimensions by decreasing stick-adjusted size, then at most one folded one, whose collaborators are neighbours on
the ring. What one core reaches of a tensor stays within the span of 256 MiB: the loop that moves farthest is divided
first, and where the cores do not suffice the op is done in several parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from math import prod

from ...ops.table import OPS
from .. import config
from ..errors import Unsupported
from ..loop_ir import Access, known
from .folded_later import Dims, folded_later
from .follow_producers import following
from .lift_views import Coordinates
from .name_dims import scopes
from .plan import STICK_BYTES, DeviceOp, Plan, ceil_div
from .regions import points_of


def divide_work(plan: Plan) -> None:
    """Sets ``slices`` of every device op."""
    todo, done = plan.device_ops[::-1], []
    writers: dict[str, DeviceOp] = {}
    folded = folded_later(plan)
    while todo:
        op = todo.pop()
        op.slices = _slices(plan, op, writers, folded)
        parts = _within_span(plan, op)
        if parts:
            todo += parts[::-1]
        else:
            done.append(op)
            writers[op.op.out.buffer] = op
    plan.device_ops = done


def _slices(plan: Plan, op: DeviceOp, writers: dict[str, DeviceOp], folded: Dims) -> list[int]:
    try:
        hinted = _hinted(plan, op)
    except Unsupported:
        if not op.op.hints.get("backward"):
            raise
        hinted = None
    if hinted is not None:
        return hinted
    if op.op.name == "matmul":
        from .divide_products import best_product_slices

        best = best_product_slices(plan, op)
        if best is not None:
            return best
    chosen = _chosen(plan, op)
    followed = following(plan, op, writers, folded) if config.lx_planning else None
    if followed and 2 * prod(followed) > prod(chosen) and _stays_within_span(plan, op, followed):
        return followed
    return chosen if _stays_within_span(plan, op, chosen) else _within_span_or(plan, op, chosen)


def _stays_within_span(plan: Plan, op: DeviceOp, slices: list[int]) -> bool:
    points = points_of(replace(op, slices=slices))
    return all(
        _reach(points, rows, side) + _jumped(plan, op, access, side) <= plan.span
        for access, side, rows in zip(op.accesses(), op.sides, byte_strides(plan, op), strict=True)
    )


def _within_span_or(plan: Plan, op: DeviceOp, chosen: list[int]) -> list[int]:
    """As many cores as before, given to several loops so that none reaches too far; else what was chosen."""
    strides = byte_strides(plan, op)
    kept = len(op.counts) - op.reduced - (OPS[op.op.name].kind == "scan")
    options: list[list[int]] = []
    for loop, count in enumerate(op.counts):
        quantum = quantum_of(op, loop, strides)
        divides = loop < kept and quantum and any(op.sides[-1].steps[loop])
        units = ceil_div(count, quantum) if divides else 1
        found = {share(count, units, quantum, wanted) for wanted in range(1, min(units, plan.cores) + 1)}
        options.append(sorted(found, reverse=True))
    fitting = [
        list(slices)
        for slices in product(*options)
        if prod(chosen) <= prod(slices) <= plan.cores and _stays_within_span(plan, op, list(slices))
    ]
    return max(fitting, key=prod, default=chosen)


def _hinted(plan: Plan, op: DeviceOp) -> list[int] | None:
    """What ``spyre_hint(work_div={"M": 4})`` asks for; dimensions that it does not name are not divided."""
    wanted: dict[str, int] = {}
    for scope in scopes(op.op):
        wanted |= scope.get("work_div") or scope.get("slices") or {}
    if not wanted:
        return None
    hint = f"spyre_hint(work_div={wanted}): {op.op.name} over {list(op.op.sizes)}"
    where = f" ({op.op.source})" if op.op.source else ""
    more = len(plan.placement(op.op.out.buffer).replicas)
    names = [op.op.names[origin - more] if origin >= more else "" for origin in op.origins]
    strides = byte_strides(plan, op)
    kept = len(op.counts) - op.reduced
    slices = [1] * len(op.counts)
    for name, cores in wanted.items():
        loops = [i for i, each in enumerate(names) if each == name]
        if not loops:
            raise Unsupported(f"{hint}: it has no dimension {name}{where}; named_dims=[...] names those of a result")
        loop = max(loops, key=lambda i: op.counts[i])
        quantum = quantum_of(op, loop, strides)
        if not quantum or share(op.counts[loop], ceil_div(op.counts[loop], quantum), quantum, cores) != cores:
            raise Unsupported(
                f"{hint}: {name} has {op.counts[loop]} points{f' in sticks of {quantum}' if quantum > 1 else ''}, "
                f"which do not divide over {cores} cores{where}"
            )
        slices[loop] = cores
    if prod(slices) > plan.cores:
        raise Unsupported(f"{hint}: that is {prod(slices)} cores, there are {plan.cores}{where}")
    if sum(cores > 1 for cores in slices[kept:]) > 1:
        raise Unsupported(f"{hint}: cores can share one folded dimension{where}")
    return slices


def _chosen(plan: Plan, op: DeviceOp) -> list[int]:
    slices = [1] * len(op.counts)
    kept = len(op.counts) - op.reduced
    kind = OPS[op.op.name].kind
    strides = byte_strides(plan, op)
    wide = [s for s, side in zip(strides, op.sides, strict=True) if _reach(op.counts, s, side) > plan.span]
    quanta = [quantum_of(op, i, strides) for i in range(len(op.counts))]
    units = [ceil_div(n, q) if q else 1 for n, q in zip(op.counts, quanta, strict=True)]
    # Along the last loop of a scan every point needs the one before.
    loops = [i for i in range(kept - (kind == "scan")) if any(op.sides[-1].steps[i])]

    def order(i: int) -> tuple[int, bool, int]:
        farthest = max((abs(s[i]) * units[i] for s in wide), default=0)
        return (-farthest, i >= kept, -units[i])

    if op.reduced and kind in ("reduction", "matmul"):
        loops.append(min(range(kept, len(op.counts)), key=order))
    left = plan.cores
    for i in sorted(loops, key=order):
        slices[i] = share(op.counts[i], units[i], quanta[i], left)
        left //= slices[i]
    return slices


def share(count: int, units: int, quantum: int, cores: int) -> int:
    """As many cores as leave none without work; a core takes ceil(count / cores) points, rounded up to whole quanta."""
    for shares in range(min(units, cores), 1, -1):
        points = ceil_div(ceil_div(count, shares), quantum) * quantum
        if points * (shares - 1) < count:
            return shares
    return 1


def quantum_of(op: DeviceOp, loop: int, strides: list[list[int]]) -> int:
    """How many points of a loop belong together so that no two cores write into one stick; 0: all of them."""
    along = [side.elements for side in op.sides if side.stick == loop]
    if along:
        return max(along)
    step = abs(strides[-1][loop])
    if loop >= len(op.counts) - op.reduced:
        return 1
    return 1 if step and step % STICK_BYTES == 0 else 0


def byte_strides(plan: Plan, op: DeviceOp) -> list[list[int]]:
    """Bytes that each operand moves per step of each loop; for a stick loop the distance of two sticks."""
    found = []
    for access, side in zip(op.accesses(), op.sides, strict=True):
        steps, rows = _dimension_bytes(plan, access), []
        for loop, row in enumerate(side.steps):
            if loop == side.stick:
                rows.append(steps[side.tile_dim] if side.tile_dim >= 0 else 0)
            else:
                rows.append(sum(a * b for a, b in zip(row, steps, strict=True)))
        found.append(rows)
    return found


def _reach(counts: list[int], strides: list[int], side: Coordinates) -> int:
    return reach_of(counts, strides, side.stick, side.elements)


def reach_of(counts: Sequence[int], strides: Sequence[int], stick: int, elements: int) -> int:
    """Bytes from the first to the last stick that an operand touches; an index may lead anywhere."""
    sticks = (ceil_div(n, elements) if i == stick else n for i, n in enumerate(counts))
    return sum((n - 1) * abs(s) for n, s in zip(sticks, strides, strict=True)) + STICK_BYTES


def _jumped(plan: Plan, op: DeviceOp, access: Access, side: Coordinates) -> int:
    """How far index tensors may lead, in bytes."""
    steps = _dimension_bytes(plan, access)
    reach = 0
    for index, (dim, step, along_sticks) in zip(op.op.indirect, side.jumps, strict=False):
        count = index.extent // side.elements if along_sticks else index.extent
        reach += (count - 1) * step * steps[side.tile_dim if along_sticks else dim]
    return reach


def _dimension_bytes(plan: Plan, access: Access) -> list[int]:
    layout = plan.layouts[access.buffer]
    steps = [STICK_BYTES // layout.device_size[-1]]
    for n in reversed(layout.device_size[1:]):
        steps.insert(0, steps[0] * n)
    return steps


def _within_span(plan: Plan, op: DeviceOp) -> list[DeviceOp]:
    """Nothing if every core stays within the span, else the two halves of the op."""
    strides = byte_strides(plan, op)
    points = points_of(op)
    for access, side, rows in zip(op.accesses(), op.sides, strides, strict=True):
        reach = _reach(points, rows, side) + _jumped(plan, op, access, side)
        if reach <= plan.span:
            continue
        kept = len(op.counts) - op.reduced - (OPS[op.op.name].kind in ("scan", "topk"))
        loops = [i for i in range(kept) if points[i] > 1 and rows[i]]
        for loop in sorted(loops, key=lambda i: -abs(rows[i]) * points[i]):
            quantum = max(quantum_of(op, loop, strides), 1)
            half = op.counts[loop] // 2 // quantum * quantum
            if half:
                return [_part(op, loop, 0, half), _part(op, loop, half, op.counts[loop] - half)]
        far = max(range(len(rows)), key=lambda i: abs(rows[i]) * points[i])
        dimension = op.origins[far] - len(plan.placement(op.op.out.buffer).replicas)
        raise Unsupported(
            f"{op.op.name} over {list(op.op.sizes)}{f' ({op.op.source})' if op.op.source else ''}: one core would "
            f"reach over {reach} bytes of {plan.layouts[access.buffer]}, most of them along dimension {dimension}, and "
            f"the card allows {plan.span}; use more cores than {plan.cores} (SENCORES) or smaller parts"
        )
    return []


def _part(op: DeviceOp, loop: int, start: int, count: int) -> DeviceOp:
    part = deepcopy(op)
    part.counts[loop] = count
    for side in part.sides:
        for dim, step in enumerate(side.steps[loop]):
            if side.stick == loop and dim == len(side.constant) - 1:
                if side.tile_dim >= 0:
                    side.constant[side.tile_dim] += start // side.elements
            else:
                side.constant[dim] += start * step
    if op.op.name == "iota":
        first, *steps = map(known, part.parameters)
        part.parameters = (first + start * steps[loop], *steps)
    return part
