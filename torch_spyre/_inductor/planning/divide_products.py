"""Matrix products are divided as the clock finds best: over rows, columns and batches, and over the depth."""

from __future__ import annotations

from math import prod

from ...card import description
from ..layout.device_ir import DeviceOp, Plan, ceil_div
from .cost import Costs
from .divisions import Slices, divisions
from .slicing_limits import byte_strides, quantum_of

# A split that is not this much faster than a simpler one is not worth it.
WORTH = 0.98


def best_product_slices(plan: Plan, op: DeviceOp, costs: Costs) -> list[int] | None:
    """The fastest division that keeps every core within the span; None if there is none."""
    key = costs.signature(op)
    if key not in costs.best_products:
        costs.best_products[key] = _best_product_slices(plan, op, costs)
    best = costs.best_products[key]
    return None if best is None else list(best)


def _best_product_slices(plan: Plan, op: DeviceOp, costs: Costs) -> Slices | None:
    candidates = list(divisions(plan, op))
    if not candidates:
        return None
    in_lx = (False,) * len(op.operands)
    times = costs.times(op, [(slices, in_lx) for slices in candidates])
    fastest = min(times)
    good = [slices for slices, time in zip(candidates, times, strict=True) if time * WORTH <= fastest]
    return min(good, key=_simplicity)


def published_product_slices(plan: Plan, op: DeviceOp) -> list[int] | None:
    """The same by the rule that is known of the public compiler, over divisors only."""
    candidates = list(divisions(plan, op))
    if not candidates:
        return None
    strides = byte_strides(plan, op)
    quanta = [quantum_of(op, loop, strides) for loop in range(len(op.counts))]
    units = [ceil_div(n, quantum) if quantum else 1 for n, quantum in zip(op.counts, quanta, strict=True)]
    whole = [slices for slices in candidates if all(n % s == 0 for n, s in zip(units, slices, strict=True))]
    best: Slices = min(whole or candidates, key=lambda slices: _published(op.counts, slices))
    return list(best)


def _published(counts: list[int], slices: Slices) -> float:
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


def _simplicity(slices: Slices) -> tuple[int, float, Slices]:
    """No partial sums first, then rows and columns about equally divided, which reads operands least often."""
    *_, m, n, k = slices
    return (k, max(m, n) / min(m, n), slices)
