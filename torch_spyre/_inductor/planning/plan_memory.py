"""Device memory for the buffers inside a kernel: one scratch allocation, its space reused as buffers die."""

from __future__ import annotations

from itertools import groupby

from ...card.description import STICK_BYTES
from ..layout.device_ir import Plan


def plan_memory(plan: Plan) -> None:
    """Fills ``plan.pool`` and ``plan.pool_bytes``: buffers that are alive together do not overlap."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for at, op in enumerate(plan.device_ops):
        for access in op.accesses():
            if plan.kernel.buffers[access.buffer].kind == "internal" and access.buffer not in plan.lx:
                first.setdefault(access.buffer, at)
                last[access.buffer] = at
    loops = _tile_loops(plan)
    for name in first:
        for begin, end in loops:
            if begin <= last[name] and first[name] <= end and not begin <= first[name] <= last[name] <= end:
                first[name], last[name] = min(first[name], begin), max(last[name], end)
    placed: list[tuple[int, int, str]] = []  # (offset, end, name) of what is alive, by offset
    for name in sorted(first, key=first.__getitem__):
        placed = [entry for entry in placed if last[entry[2]] >= first[name]]
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


def _tile_loops(plan: Plan) -> list[tuple[int, int]]:
    """The first and the last op of every tile loop, inner loops first.

    What is alive in and outside of a loop is alive in all of it: the next iteration begins at its first op again.
    """
    loops_of = [op.loop_op.tile_loops for op in plan.device_ops]
    found = []
    for depth in range(max(map(len, loops_of), default=0), 0, -1):
        for loops, group in groupby(range(len(loops_of)), key=lambda at: loops_of[at][:depth]):
            inside = list(group)
            if len(loops) == depth:
                found.append((inside[0], inside[-1]))
    return found
