"""Every way to divide an op over cores: in whole sticks, with no core idle, none reaching over the span."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod

from ..layout.coordinates import Coordinates
from ..layout.device_ir import DeviceOp, Plan, ceil_div
from .core_tiles import points_of
from .slicing_limits import byte_strides, jumped, most_slices, quantum_of, reach_of

Slices = tuple[int, ...]  # cores per loop


def divisions(
    plan: Plan, op: DeviceOp, exactly: int = 0, moving: Coordinates | None = None, any_number: bool = False
) -> Iterator[Slices]:
    """Ways to divide the loops of an op: no core is idle, no two write into one stick, and none reaches over the span.

    ``exactly`` so many cores, over loops that move the operand ``moving``; else ``any_number``, or as many as can be.
    """
    strides = byte_strides(plan, op)
    kept = len(op.counts) - op.reduced
    written = op.operands[-1]
    options: list[list[int]] = []
    for loop, count in enumerate(op.counts):
        quantum = quantum_of(op, loop, strides)
        may = bool(quantum) and (loop >= kept or any(written.steps[loop]) or written.stick == loop)
        if moving is not None:
            may = may and loop < kept and (any(moving.steps[loop]) or moving.stick == loop)
        units = ceil_div(count, quantum) if may else 1
        options.append(_slice_counts(count, units, max(quantum, 1), plan.cores))
    found = list(_products(options, exactly or plan.cores))
    if exactly:
        found = [slices for slices in found if prod(slices) == exactly]
    elif not any_number:
        most = max(map(prod, found), default=1)
        found = [slices for slices in found if 2 * prod(slices) > most]
    for slices in found:
        if sum(cores > 1 for cores in slices[kept:]) <= 1 and within_span(plan, op, slices, strides):
            yield slices


def within_span(plan: Plan, op: DeviceOp, slices: Sequence[int], strides: list[list[int]] | None = None) -> bool:
    points = points_of(op, slices)
    rows = byte_strides(plan, op) if strides is None else strides
    return all(
        reach_of(points, row, operand.stick, operand.elements) + jumped(plan, op, access, operand) <= plan.span
        for access, operand, row in zip(op.accesses(), op.operands, rows, strict=True)
    )


@lru_cache(1 << 14)
def _slice_counts(count: int, units: int, quantum: int, cores: int) -> list[int]:
    return sorted({most_slices(count, units, quantum, wanted) for wanted in range(1, min(units, cores) + 1)} | {1})


def _products(options: list[list[int]], cores: int) -> Iterator[Slices]:
    if not options:
        yield ()
        return
    for mine in options[0]:
        if mine > cores:
            break
        for rest in _products(options[1:], cores // mine):
            yield (mine, *rest)
