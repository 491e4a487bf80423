"""Work division: which loops are shared by how many cores.

Output dimensions by decreasing stick-adjusted size, then at most one folded one, whose collaborators are neighbours on
the ring. What one core reaches of a tensor stays within the span of 256 MiB: the loop that moves farthest is divided
first, and where the cores do not suffice the op is done in several parts.
"""

from __future__ import annotations

from copy import deepcopy
from math import prod

from .. import config
from ..errors import Unsupported
from ..layout.coordinates import Coordinates
from ..layout.device_ir import DeviceOp, Plan, ceil_div
from ..loop_ir import known
from .core_tiles import points_of
from .cost import Costs
from .divide_products import best_product_slices, published_product_slices
from .divisions import divisions, within_span
from .joint_search import joint_search
from .slicing_limits import DIVIDED_OF_PAGED, byte_strides, jumped, most_slices, quantum_of, reach_of


def divide_work(plan: Plan) -> None:
    """Sets ``slices`` of every device op."""
    costs = Costs(plan)
    hinted = divide_each(plan, costs)
    if config.lx_planning and config.planning == "together":
        joint_search(plan, hinted, costs)
    else:
        plan.planned_us = sum(
            prod(count for _, count in op.loop_op.tile_loops) * costs.time(op, op.slices, (False,) * len(op.operands))
            for op in plan.device_ops
        )


def divide_each(plan: Plan, costs: Costs) -> set[int]:
    """Every op as is best for itself; returns the ids of those that hints divide."""
    todo, done = plan.device_ops[::-1], []
    hinted: set[int] = set()
    while todo:
        op = todo.pop()
        wanted = _wanted(plan, op)
        op.slices = _slices(plan, op, costs) if wanted is None else wanted
        parts = _within_span(plan, op)
        if parts:
            todo += parts[::-1]
            continue
        done.append(op)
        if wanted is not None:
            hinted.add(id(op))
    plan.device_ops = done
    return hinted


def _wanted(plan: Plan, op: DeviceOp) -> list[int] | None:
    try:
        return _hinted(plan, op)
    except Unsupported:
        if not op.loop_op.hints.get("backward"):
            raise
        return None


def _slices(plan: Plan, op: DeviceOp, costs: Costs) -> list[int]:
    if op.loop_op.row.is_product and not op.loop_op.row.is_paged:  # how long it takes is known at the launch
        published = config.planning == "op_by_op"
        best = published_product_slices(plan, op) if published else best_product_slices(plan, op, costs)
        if best is not None:
            return best
    chosen = _chosen(plan, op)
    return chosen if within_span(plan, op, chosen) else _within_span_or(plan, op, chosen)


def _within_span_or(plan: Plan, op: DeviceOp, chosen: list[int]) -> list[int]:
    """As many cores as before, given to several loops so that none reaches too far, the outer ones first; else what was
    chosen."""
    kept = len(op.counts) - op.reduced - op.loop_op.row.is_scan
    fitting = [
        list(slices)
        for slices in divisions(plan, op, any_number=True)
        if prod(slices) >= prod(chosen) and max(slices[kept:], default=1) == 1
    ]
    return max(fitting, key=lambda slices: (prod(slices), slices), default=chosen)


def _hinted(plan: Plan, op: DeviceOp) -> list[int] | None:
    """What ``spyre_hint(work_div={"M": 4})`` asks for; dimensions that it does not name are not divided."""
    wanted: dict[str, int] = {}
    for scope in op.loop_op.scopes():
        wanted |= scope.get("work_div") or scope.get("slices") or {}
    if not wanted:
        return None
    hint = f"spyre_hint(work_div={wanted}): {op.loop_op.name} over {list(op.loop_op.sizes)}"
    where = op.loop_op.where()
    more = len(plan.placement(op.loop_op.out.buffer).replicas)
    names = [op.loop_op.names[origin - more] if origin >= more else "" for origin in op.origins]
    strides = byte_strides(plan, op)
    kept = len(op.counts) - op.reduced
    slices = [1] * len(op.counts)
    for name, cores in wanted.items():
        loops = [i for i, each in enumerate(names) if each == name]
        if not loops:
            raise Unsupported(f"{hint}: it has no dimension {name}{where}; named_dims=[...] names those of a result")
        loop = max(loops, key=lambda i: op.counts[i])
        row = op.loop_op.row
        if loop >= kept - row.is_scan and not (row.is_reduction or row.is_matmul):
            raise Unsupported(f"{hint}: to {row.name} all of {name} is one row, which cores do not share{where}")
        quantum = quantum_of(op, loop, strides)
        if not quantum or most_slices(op.counts[loop], ceil_div(op.counts[loop], quantum), quantum, cores) != cores:
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
    row = op.loop_op.row
    strides = byte_strides(plan, op)
    wide = [s for s, operand in zip(strides, op.operands, strict=True) if _reach(op.counts, s, operand) > plan.span]
    quanta = [quantum_of(op, i, strides) for i in range(len(op.counts))]
    units = [ceil_div(n, q) if q else 1 for n, q in zip(op.counts, quanta, strict=True)]
    # Along the last loop of a scan every point needs the one before.
    loops = [i for i in range(kept - row.is_scan) if any(op.operands[-1].steps[i])]

    def order(i: int) -> tuple[int, bool, int]:
        farthest = max((abs(s[i]) * units[i] for s in wide), default=0)
        return (-farthest, i >= kept, -units[i])

    if row.is_paged:
        loops = list(DIVIDED_OF_PAGED)
    elif op.reduced and (row.is_reduction or row.is_matmul):
        loops.append(min(range(kept, len(op.counts)), key=order))
    left = plan.cores
    for i in sorted(loops, key=order):
        slices[i] = most_slices(op.counts[i], units[i], quanta[i], left)
        left //= slices[i]
    return slices


def _reach(counts: list[int], strides: list[int], operand: Coordinates) -> int:
    return reach_of(counts, strides, operand.stick, operand.elements)


def _within_span(plan: Plan, op: DeviceOp) -> list[DeviceOp]:
    """Nothing if every core stays within the span, else the two halves of the op."""
    strides = byte_strides(plan, op)
    points = points_of(op, op.slices)
    for access, operand, rows in zip(op.accesses(), op.operands, strides, strict=True):
        reach = _reach(points, rows, operand) + jumped(plan, op, access, operand)
        if reach <= plan.span:
            continue
        kept = (
            len(op.counts)
            - op.reduced
            - {"scan": 1, "topk": 1, "attention": 2, "paged_attention": 3}.get(op.loop_op.row.kind, 0)
        )
        loops = [i for i in range(kept) if points[i] > 1 and rows[i]]
        for loop in sorted(loops, key=lambda i: -abs(rows[i]) * points[i]):
            quantum = max(quantum_of(op, loop, strides), 1)
            half = op.counts[loop] // 2 // quantum * quantum
            if half:
                return [_part(op, loop, 0, half), _part(op, loop, half, op.counts[loop] - half)]
        far = max(range(len(rows)), key=lambda i: abs(rows[i]) * points[i])
        dimension = op.origins[far] - len(plan.placement(op.loop_op.out.buffer).replicas)
        raise Unsupported(
            f"{op.loop_op.name} over {list(op.loop_op.sizes)}{op.loop_op.where()}: one core would "
            f"reach over {reach} bytes of {plan.layouts[access.buffer]}, most of them along dimension {dimension}, and "
            f"the card allows {plan.span}; use more cores than {plan.cores} (SENCORES) or smaller parts"
        )
    return []


def _part(op: DeviceOp, loop: int, start: int, count: int) -> DeviceOp:
    part = deepcopy(op)
    part.counts[loop] = count
    for operand in part.operands:
        for dim, step in enumerate(operand.steps[loop]):
            if operand.stick == loop and dim == len(operand.constant) - 1:
                if operand.tile_dim >= 0:
                    operand.constant[operand.tile_dim] += start // operand.elements
            else:
                operand.constant[dim] += start * step
    if op.loop_op.row.is_iota:
        first, *steps = map(known, part.parameters)
        part.parameters = (first + start * steps[loop], *steps)
    return part
