"""Through which of its arguments a function stores, so that others need no copies."""

from __future__ import annotations

from ...ir.ktir.model import Func, Op, Value, walk


def stored_arguments(func: Func) -> set[str] | None:
    """Their names; None where a store's address does not follow from arguments alone."""
    arguments = {value: value.name for value in func.region.arguments}
    found: set[str] = set()
    for op in walk(func.region):
        if op.name == "func.call":
            return None
        if op.name != "ktdp.store":
            continue
        bases = _bases(op.operands[1])
        names = {arguments[value] for value in bases if value in arguments}
        if not names or any(value not in arguments and _is_unknown(value) for value in bases):
            return None
        found |= names
    return found


def _bases(value: Value) -> set[Value]:
    """What the address of an access tile's view is made of."""
    op = value.op
    while op is not None and op.name in ("ktdp.construct_access_tile", "ktdp.construct_indirect_access_tile"):
        value = op.operands[0]
        op = value.op
    views = op.operands if op is not None and op.name == "ktdp.construct_distributed_memory_view" else [value]
    found: set[Value] = set()
    for view in views:
        found |= {view} if view.op is None else _leaves(view.op.operands[0])
    return found


def _leaves(value: Value) -> set[Value]:
    found, waiting, seen = set(), [value], set()
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        op: Op | None = each.op
        if op is None or not op.operands or not op.name.startswith("arith."):
            found.add(each)
        else:
            waiting += op.operands
    return found


def _is_unknown(value: Value) -> bool:
    """A block's argument other than the function's, or what is loaded: it may be any address."""
    return value.op is None or value.op.name not in (
        "arith.constant",
        "ktdp.get_compute_tile_id",
        "ktdp.runtime_arg_extract",
    )
