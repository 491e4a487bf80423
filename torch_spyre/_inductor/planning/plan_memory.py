"""Device memory for the buffers inside a kernel: one scratch allocation, its space reused as buffers die."""

from __future__ import annotations

from ...card.description import STICK_BYTES
from ..layout.device_ir import Plan
from .liveness import lifetimes


def plan_memory(plan: Plan) -> None:
    """Fills ``plan.pool`` and ``plan.pool_bytes``: buffers that are alive together do not overlap."""
    inside = (name for name, buffer in plan.kernel.buffers.items() if buffer.kind == "internal" and name not in plan.lx)
    alive = lifetimes(plan, inside)
    placed: list[tuple[int, int, str]] = []  # (offset, end, name) of what is alive, by offset
    for name, (first, _) in sorted(alive.items(), key=lambda each: each[1][0]):
        placed = [entry for entry in placed if alive[entry[2]][1] >= first]
        bytes_ = max(plan.layouts[name].device_bytes(), STICK_BYTES)
        offset = 0
        for begin, end, _ in placed:
            if begin - offset >= bytes_:
                break
            offset = max(offset, end)
        placed.append((offset, offset + bytes_, name))
        placed.sort()
        plan.pool[name] = offset
        plan.pool_bytes = max(plan.pool_bytes, offset + bytes_)
