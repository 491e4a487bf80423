"""Which part of an operand a core has: where it begins on the card, and how large it is."""

from __future__ import annotations

from ...ir.folds import core_slices
from .lift_views import Coordinates
from .plan import DeviceOp, ceil_div


def can_hold(op: DeviceOp, side: Coordinates) -> bool:
    """Whether a core that carries out its part of the op finds its part of the operand in its own LX."""
    folds_together = any(slices > 1 for slices in op.slices[len(op.counts) - op.reduced :])
    return not folds_together and not side.jumps and all(step >= 0 for row in side.steps for step in row)


def points_of(op: DeviceOp) -> list[int]:
    """What every core but the last takes of each loop: whole sticks of all that lies along it."""
    points = []
    for loop, (count, slices) in enumerate(zip(op.counts, op.slices, strict=True)):
        unit = max((side.elements for side in op.sides if side.stick == loop), default=1)
        share = ceil_div(count, slices)
        points.append(min(ceil_div(share, unit) * unit, count) if slices > 1 else share)
    return points


def own_size(op: DeviceOp, side: Coordinates, elements: int) -> list[int]:
    """The device size of a core's part, in whole sticks."""
    points = points_of(op)
    size = [1] * len(side.constant)
    for loop, row in enumerate(side.steps):
        for dim, step in enumerate(row):
            if loop != side.stick:
                size[dim] += step * (points[loop] - 1)
    if side.stick >= 0 and side.tile_dim >= 0:
        size[side.tile_dim] += ceil_div(points[side.stick], side.elements) - 1
    return [*size[:-1], elements]


def begins_of(op: DeviceOp, side: Coordinates) -> list[tuple[int, ...]]:
    """Where each core's part begins, in device coordinates."""
    points = points_of(op)
    found = []
    for slices in core_slices(tuple(op.slices)):
        at = list(side.constant)
        for loop, (slice_, row) in enumerate(zip(slices, side.steps, strict=True)):
            begin = slice_ * points[loop]
            if loop == side.stick:
                if side.tile_dim >= 0:
                    at[side.tile_dim] += begin // side.elements
            else:
                for dim, step in enumerate(row):
                    at[dim] += begin * step
        found.append(tuple(at))
    return found
