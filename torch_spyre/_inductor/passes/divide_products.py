"""Matrix products are divided as the clock finds best: over rows, columns and batches, and over the depth."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod

from ... import _C
from ...card import description
from .plan import DeviceOp, Plan, ceil_div
from .shares import byte_strides, quantum_of, reach_of, share

# A split that is not this much faster than a simpler one is not worth it.
WORTH = 0.98


def best_product_slices(plan: Plan, op: DeviceOp, published: bool = False) -> list[int] | None:
    """The fastest division that keeps every core within the span; None if there is none. ``published``: by the rule
    that is known of the public compiler, over divisors only."""
    strides = byte_strides(plan, op)
    quanta = [quantum_of(op, i, strides) for i in range(len(op.counts))]
    most = [ceil_div(n, q) if q else 1 for n, q in zip(op.counts, quanta, strict=True)]
    sides = [(tuple(row), side.stick, side.elements) for row, side in zip(strides, op.sides, strict=True)]
    formats = [plan.layouts[access.buffer].device_dtype.name for access in op.accesses()]
    found = _best(
        tuple(op.counts), tuple(quanta), tuple(most), tuple(sides), tuple(formats), plan.cores, plan.span, published
    )
    return None if found is None else list(found)


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
    published: bool,
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
    if published:
        whole = [slices for slices in candidates if all(n % s == 0 for n, s in zip(most, slices, strict=True))]
        return min(whole or candidates, key=lambda slices: _published(counts, slices))
    order = [len(sides) - 1, *range(len(sides) - 1)]  # a step has the written operand first
    operands = [
        {"argument": 0, "strides": list(sides[i][0]), "stick": sides[i][1], "format": formats[i]} for i in order
    ]
    steps = [{"op": "matmul", "extents": list(counts), "slices": slices, "operands": operands} for slices in candidates]
    times = _C.time_of_steps(steps)
    fastest = min(times)
    good = [slices for slices, time in zip(candidates, times, strict=True) if time * WORTH <= fastest]
    return min(good, key=_simplicity)


def _published(counts: tuple[int, ...], slices: list[int]) -> float:
    """(compute + device memory + partial sums) × b^1.4, in ns; b: the shares of batches."""
    card = description.constants()
    *batch, m, n, k = counts
    *shares, by_m, by_n, by_k = slices
    batches, b = prod(batch), prod(shares)
    rows, columns = m / by_m, n / by_n
    fill = min(1.0, rows / card["pt_rows"]) ** card["pt_fill"]
    compute = batches / b * rows * columns * k / by_k / (card["pt_mac_per_ns"] * fill)
    reads = m * k * max(1.0, by_n / card["multicast_cores"]) + k * n * max(1.0, by_m / card["multicast_cores"])
    memory = 2 * batches * (reads + m * n) / card["dram_gb_per_s"]
    sums = card["psum_ns_per_element_hop"] * (by_k - 1) * batches / b * rows * columns
    return float((compute + memory + sums) * b**1.4)


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
