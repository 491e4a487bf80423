"""A plan as data that stays with the compiled kernel: what people and tools want to know of it later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...ir.op_spec import LoopSpec, OpSpec
from ..layout.device_ir import Plan
from .liveness import last_needed
from .why_not_in_lx import why_not_in_lx


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Buffers with their layout, place and life, and which of them each device op reads and writes.

    Positions of ops are those of the OpSpecs.
    """
    reasons = why_not_in_lx(plan)
    uses: dict[str, list[int]] = {}
    for at, op in enumerate(plan.device_ops):
        for access in op.accesses():
            uses.setdefault(access.buffer, []).append(at)
    numbers = {name: i for i, name in enumerate(uses)}
    ops = [[numbers[access.buffer] for access in op.accesses()] for op in plan.device_ops]
    return {
        "buffers": [_buffer(plan, name, at, reasons) for name, at in uses.items()],
        "reads": [each[:-1] for each in ops],
        "writes": [each[-1] for each in ops],
        "iterations": list(_iterations(plan.specs, {})),
    }


def _iterations(specs: Sequence[OpSpec | LoopSpec], symbols: dict[str, int]) -> Iterator[dict[str, int]]:
    """The values of the symbols of the tile loops around each step, in the order of execution."""
    for spec in specs:
        if isinstance(spec, LoopSpec):
            for i in range(spec.count):
                yield from _iterations(spec.body, symbols | {symbol.name: i for symbol in spec.tiled_symbols})
        else:
            yield symbols


def _buffer(plan: Plan, name: str, at: list[int], reasons: dict[str, str]) -> dict[str, Any]:
    buffer, layout = plan.kernel.buffers[name], plan.layouts[name]
    first, last, core_bytes = at[0], last_needed(plan, at[0], at[-1]), 0
    if name in plan.lx:
        place, (address, there) = "lx", plan.lx[name]
        core_bytes = there.bytes
    elif name in plan.pool:
        place, address = "pool", plan.pool[name]
    else:
        place, address, first, last = "argument", plan.arguments[name], 0, len(plan.device_ops) - 1
    found = {
        "name": name,
        "kind": buffer.kind,
        "dtype": str(buffer.dtype).removeprefix("torch."),
        "size": list(buffer.size),
        "stride": list(buffer.stride),
        "layout": {
            "format": layout.device_dtype.name,
            "device_size": list(layout.device_size),
            "stride_map": list(layout.stride_map),
        },
        "bytes": layout.device_bytes(),
        "place": place,
        "address": address,
        "core_bytes": core_bytes,
        "first": first,
        "last": last,
    }
    return found | {"why_not": reasons[name]} if name in reasons else found
