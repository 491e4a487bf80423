"""In which order folds of several loops go through memory, which decides the last bits of a sum.

It follows from the layout of what is folded, and that from the ops that made it. Tiles change these ops, so
every change of tiles or layouts is checked for it.
"""

from __future__ import annotations

from collections import Counter

from ..errors import Unsupported
from ..loop_ir import Access, LoopOp
from .device_ir import Plan

# The loop along the sticks, 0 for none, and the loops in the order of the device dimensions they move along: that along
# the sticks moves tiles and lanes. Loops are counted from the end.
Order = tuple[int, tuple[int, ...]]
FoldOrders = dict[tuple[str, int], Order]  # by buffer, and which of its writers it is


def keep_fold_orders(plan: Plan) -> None:
    """Refuses layouts in which a fold would go another way than ``plan.fold_orders`` asks for."""
    if plan.fold_orders is not None and fold_orders(plan) != plan.fold_orders:
        raise Unsupported("tiles that change the order of a sum")


def fold_orders(plan: Plan) -> FoldOrders:
    """The order of every fold. Layouts have to be there."""
    found: FoldOrders = {}
    writers: Counter[str] = Counter()
    for op in plan.kernel.ops:
        if op.row.is_reduction:
            found[op.out.buffer, writers[op.out.buffer]] = _order(plan, op)
        writers[op.out.buffer] += 1
    return found


def _order(plan: Plan, op: LoopOp) -> Order:
    source = op.ins[0]
    assert isinstance(source, Access)
    rank = len(op.sizes)
    lanes = plan.lane_loop(source, op.sizes) - rank
    folded = [i for i in range(rank - op.reduced, rank) if op.sizes[i] > 1 and source.strides[i]]
    places = [(place, i - rank) for i in folded for place in _places(plan, source, i, i - rank == lanes)]
    return (lanes if lanes + rank in folded else 0), tuple(loop for _, loop in sorted(places))


def _places(plan: Plan, access: Access, loop: int, along_sticks: bool) -> list[int]:
    """The device dimensions that a loop moves along."""
    layout, step = plan.layouts[access.buffer], access.strides[loop]
    dims = list(enumerate(zip(layout.device_size, layout.stride_map, strict=True)))
    found = [i for i, (n, unit) in dims if 0 < unit <= step < unit * n and step % unit == 0][:1]
    if along_sticks:
        tile = layout.stride_map[-1] * layout.device_size[-1]
        found += [i for i, (n, unit) in dims if unit == tile and n > 1][:1]
    return found or [-1]
