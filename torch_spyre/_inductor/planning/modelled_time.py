"""The modelled time of a kernel with tile loops, planned by itself: what a way to tile would give."""

from __future__ import annotations

from itertools import groupby
from math import prod

from ..._C import SpyreTensorLayout
from ...card import description
from .. import config
from ..layout.device_ir import Plan, dense_layout
from ..layout.insert_restickify import insert_restickify
from ..layout.lift_ops import lift_ops
from ..layout.propagate_layouts import propagate_layouts
from ..loop_ir import Buffer, Kernel
from .cost import Costs
from .divide_work import divide_work
from .plan_scratchpad import plan_scratchpad
from .relayout import relayout_us
from .tile_products import tile_products


def modelled_us(kernel: Kernel, given: Plan) -> float:
    """Microseconds of a part of the kernel of ``given``, with its layouts and number of cores. Raises Unsupported or
    NotAligned where the part cannot be planned."""
    layouts = {name: _layout(buffer, given) for name, buffer in kernel.buffers.items() if buffer.kind == "input"}
    plan = given.of(kernel, layouts)
    tile_products(plan)
    propagate_layouts(plan)
    insert_restickify(plan)
    lift_ops(plan)
    with config.patch(plan_bound=False):
        divide_work(plan)
    plan_scratchpad(plan)
    costs = Costs(plan)
    total = 0.0
    for op in plan.device_ops:
        in_lx = tuple(access.buffer in plan.lx for access in op.accesses())
        time = relayout_us(plan, op) if op.across else costs.time(op, op.slices, in_lx)
        total += prod(count for _, count in op.loop_op.tile_loops) * time
    card = description.constants()
    for loops, _ in groupby(plan.device_ops, key=lambda op: op.loop_op.tile_loops):
        total += (prod(count for _, count in loops) - 1) * card["turn_fixed_us"]
    return total


def _layout(buffer: Buffer, given: Plan) -> SpyreTensorLayout:
    return given.layouts.get(buffer.name) or dense_layout(buffer)
