"""Along which device dimensions a buffer is folded later on: cores that divide these would not find what they need."""

from __future__ import annotations

from collections import defaultdict

from ...ops.table import OPS
from .lift_views import Coordinates
from .plan import Plan

Dims = dict[str, set[int]]  # by buffer


def folded_later(plan: Plan) -> Dims:
    """Through chains of pointwise ops, from the last to the first."""
    found: Dims = defaultdict(set)
    for op in reversed(plan.device_ops):
        kind = OPS[op.op.name].kind
        if kind not in ("pointwise", "reduction"):
            continue
        kept = len(op.counts) - op.reduced
        out = op.sides[-1]
        loops = {i for i in range(kept) if moved(out, i) & found[op.op.out.buffer]} | set(range(kept, len(op.counts)))
        for access, side in zip(op.accesses()[:-1], op.sides, strict=False):
            for loop in loops:
                found[access.buffer] |= moved(side, loop)
    return found


def moved(side: Coordinates, loop: int) -> set[int]:
    """The device dimensions that a loop moves along."""
    dims = {dim for dim, step in enumerate(side.steps[loop]) if step}
    return dims | {side.tile_dim} if loop == side.stick and side.tile_dim >= 0 else dims
