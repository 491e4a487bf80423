"""Core tiles: the box of an operand's device coordinates that each core works on, and whether it can stay in LX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import prod
from operator import add

from ...ir.core_split import divided
from ..layout.coordinates import Coordinates
from ..layout.device_ir import DeviceOp, LxPlacement, ceil_div


@dataclass(frozen=True)
class CoreTile:
    """The tiles of one operand, one per core, all of the same size."""

    origin: tuple[int, ...]  # of core 0
    apart: tuple[tuple[int, ...], ...]  # by core: how far behind core 0 it begins
    size: tuple[int, ...]  # in whole sticks


def can_hold(op: DeviceOp, operand: Coordinates, slices: Sequence[int]) -> bool:
    """Whether each core finds its tile of the operand in its own LX: no other core adds to it, no index leads out of
    it, and it is walked forwards."""
    folds_together = any(cores > 1 for cores in slices[len(op.counts) - op.reduced :])
    return not folds_together and not operand.jumps and all(step >= 0 for row in operand.steps for step in row)


def lies_still(operand: Coordinates) -> bool:
    """Whether every iteration of the loops around the op uses the same tile: no index and no tile loop moves it, and it
    is walked forwards."""
    return (
        not operand.jumps
        and not any(map(any, operand.tile_steps))
        and all(step >= 0 for row in operand.steps for step in row)
    )


def fills_its_box(op: DeviceOp, operand: Coordinates) -> bool:
    """Whether an operand touches every stick of the box that it spans."""
    for dim in range(len(operand.constant) - 1):
        ways = [
            (row[dim], n)
            for loop, (row, n) in enumerate(zip(operand.steps, op.counts, strict=True))
            if loop != operand.stick
        ]
        if operand.stick >= 0 and dim == operand.tile_dim:
            ways.append((1, ceil_div(op.counts[operand.stick], operand.elements)))
        reached = 1
        for step, n in sorted(way for way in ways if way[0] and way[1] > 1):
            if step > reached:
                return False
            reached += step * (n - 1)
    return True


def points_of(op: DeviceOp, slices: Sequence[int]) -> list[int]:
    """The points of each loop that every core but the last takes, in whole sticks of the operands along it."""
    points = list(op.counts)
    for loop, cores in enumerate(slices):
        if cores > 1:
            unit = max((operand.elements for operand in op.operands if operand.stick == loop), default=1)
            points[loop] = divided("", points[loop], cores, unit).points
    return points


def core_tile(op: DeviceOp, operand: Coordinates, elements: int, slices: Sequence[int]) -> CoreTile:
    """The tiles of an operand if ``slices`` cores share each loop."""
    points = points_of(op, slices)
    apart: list[tuple[int, ...]] = [(0,) * len(operand.constant)]  # of the cores that divide the loops so far
    size = [1] * len(operand.constant)
    for loop, row in enumerate(operand.steps):
        if loop != operand.stick:
            far = [step * points[loop] for step in row]  # from one core's slice to the next
            size = [n + step * (points[loop] - 1) for n, step in zip(size, row, strict=True)]
        else:
            far = [0] * len(size)
            if operand.tile_dim >= 0:
                far[operand.tile_dim] = points[loop] // operand.elements
                size[operand.tile_dim] += ceil_div(points[loop], operand.elements) - 1
        if slices[loop] > 1:  # cores are numbered by their slices, those of the last loop are neighbours
            starts = [[number * step for step in far] for number in range(slices[loop])]
            apart = [tuple(map(add, before, start)) for before in apart for start in starts]
    return CoreTile(tuple(operand.constant), tuple(apart), (*size[:-1], elements))


def lx_placement(written: Sequence[CoreTile], read: Iterable[CoreTile]) -> LxPlacement | None:
    """The place of a buffer in LX, if every core reads only what it wrote itself; None if some core would not."""
    apart = written[0].apart
    if any(tile.origin[-1] for tile in written):  # it begins inside a stick
        return None
    boxes = {(tile.origin, tile.size) for tile in written}
    low = tuple(map(min, zip(*(origin for origin, _ in boxes), strict=True)))
    high = tuple(map(max, zip(*(_end(origin, size) for origin, size in boxes), strict=True)))
    size = tuple(b - a for a, b in zip(low, high, strict=True))
    # Several writers have to fill the box without gaps, and no two cores may have an element in common.
    if len(boxes) > 1 and (sum(prod(box) for _, box in boxes) != prod(size) or not _disjoint(apart, size)):
        return None
    for tile in (*written, *read):
        if tile.apart != apart[: len(tile.apart)]:
            return None
        inside = zip(low, tile.origin, _end(tile.origin, tile.size), high, strict=True)
        if not all(a <= begin and end <= b for a, begin, end, b in inside):
            return None
    return LxPlacement(low, size)


@cache
def _disjoint(apart: tuple[tuple[int, ...], ...], size: tuple[int, ...]) -> bool:
    """Whether boxes of that size, one per core, have nothing in common."""
    return all(
        any(abs(a - b) >= n for a, b, n in zip(one, other, size, strict=True)) for one, other in combinations(apart, 2)
    )


def _end(origin: tuple[int, ...], size: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + n for a, n in zip(origin, size, strict=True))
