"""Matrix products are divided as the clock finds best: over rows, columns and batches, and over the depth."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ... import _C
from .plan import DeviceOp, Plan, ceil_div
from .shares import byte_strides, quantum_of, reach_of, share

# A split that is not this much faster than a simpler one is not worth it.
WORTH = 0.98


def best_product_slices(plan: Plan, op: DeviceOp) -> list[int] | None:
    """The fastest division that keeps every core within the span; None if there is none."""
    strides = byte_strides(plan, op)
    quanta = [quantum_of(op, i, strides) for i in range(len(op.counts))]
    most = [ceil_div(n, q) if q else 1 for n, q in zip(op.counts, quanta, strict=True)]
    sides = [(tuple(row), side.stick, side.elements) for row, side in zip(strides, op.sides, strict=True)]
    formats = [plan.layouts[access.buffer].device_dtype.name for access in op.accesses()]
    return _best(tuple(op.counts), tuple(quanta), tuple(most), tuple(sides), tuple(formats), plan.cores, plan.span)


Sides = tuple[tuple[tuple[int, ...], int, int], ...]


@lru_cache(maxsize=4096)
def _best(
    counts: tuple[int, ...],
    quanta: tuple[int, ...],
    most: tuple[int, ...],
    sides: Sides,
    formats: tuple[str, ...],
    cores: int,
    span: int,
) -> list[int] | None:
    candidates = [
        slices
        for slices in _splits(counts, quanta, most, cores)
        if all(
            reach_of(_points(counts, slices, quanta), strides, stick, elements) <= span
            for strides, stick, elements in sides
        )
    ]
    if not candidates:
        return None
    order = [len(sides) - 1, *range(len(sides) - 1)]  # a step has the written operand first
    operands = [
        {"argument": 0, "strides": list(sides[i][0]), "stick": sides[i][1], "format": formats[i]} for i in order
    ]
    steps = [{"op": "matmul", "extents": list(counts), "slices": slices, "operands": operands} for slices in candidates]
    times = _C.time_of_steps(steps)
    fastest = min(times)
    good = [slices for slices, time in zip(candidates, times, strict=True) if time * WORTH <= fastest]
    return min(good, key=_simplicity)


def _points(counts: tuple[int, ...], slices: list[int], quanta: tuple[int, ...]) -> list[int]:
    """What every core but the last takes of each loop, in whole quanta."""
    shares = (ceil_div(n, s) for n, s in zip(counts, slices, strict=True))
    return [min(ceil_div(share, max(q, 1)) * max(q, 1), n) for share, q, n in zip(shares, quanta, counts, strict=True)]


def _simplicity(slices: list[int]) -> tuple[int, float, list[int]]:
    """No partial sums first, then rows and columns about equally divided, which reads operands least often."""
    *_, m, n, k = slices
    return (k, max(m, n) / min(m, n), slices)


def _splits(counts: tuple[int, ...], quanta: tuple[int, ...], most: tuple[int, ...], cores: int) -> Iterator[list[int]]:
    """Every way to give up to so many cores to the loops such that none is without work."""

    def walk(loop: int, left: int) -> Iterator[list[int]]:
        if loop == len(counts):
            yield []
            return
        tried = set()
        for wanted in range(1, min(most[loop], left) + 1):
            slices = share(counts[loop], most[loop], quanta[loop], wanted) if quanta[loop] else 1
            if slices in tried:
                continue
            tried.add(slices)
            for rest in walk(loop + 1, left // slices):
                yield [slices, *rest]

    used = max((_product(s) for s in walk(0, cores)), default=1)
    for slices in walk(0, cores):
        if 2 * _product(slices) > used:
            yield slices


def _product(slices: list[int]) -> int:
    total = 1
    for each in slices:
        total *= each
    return total
