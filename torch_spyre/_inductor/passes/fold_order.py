"""In which order folds of several loops go through memory, which decides the last bits of a sum.

It follows from the layout of what is folded, and that from the ops that made it. Tiles change these ops: whoever adds
some has to see that every fold still goes the same way.
"""

from __future__ import annotations

from collections import Counter

from ...ops.table import OPS
from ..loop_ir import Access, LoopOp
from .plan import Plan

Order = tuple[int, tuple[int, ...]]  # the loop along the sticks, the others from the outermost on; counted from the end


def fold_orders(plan: Plan) -> dict[tuple[str, int], Order]:
    """By buffer, and which of its writers it is. Layouts have to be there."""
    found: dict[tuple[str, int], Order] = {}
    writers: Counter[str] = Counter()
    for op in plan.kernel.ops:
        if OPS[op.name].kind == "reduction":
            found[op.out.buffer, writers[op.out.buffer]] = _order(plan, op)
        writers[op.out.buffer] += 1
    return found


def _order(plan: Plan, op: LoopOp) -> Order:
    source = op.ins[0]
    assert isinstance(source, Access)
    rank = len(op.sizes)
    lanes = plan.lane_loop(source, op.sizes) - rank
    folded = [i for i in range(rank - op.reduced, rank) if op.sizes[i] > 1 and source.strides[i]]
    places = {i - rank: _place(plan, source, i) for i in folded}
    return (lanes if lanes in places else 0), tuple(sorted(places, key=lambda loop: (places[loop], loop)))


def _place(plan: Plan, access: Access, loop: int) -> int:
    """The device dimension that a loop moves along."""
    layout, step = plan.layouts[access.buffer], access.strides[loop]
    dims = zip(layout.device_size, layout.stride_map, strict=True)
    return next((i for i, (n, unit) in enumerate(dims) if 0 < unit <= step < unit * n and step % unit == 0), -1)
