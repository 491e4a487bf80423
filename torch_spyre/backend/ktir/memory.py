"""Views, access tiles, loads and stores; what tiles send each other."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from ...ir.ktir.affine import AffineMap, IntegerSet, box, identity, postfix
from ...ir.ktir.attributes import Numbers
from ...ir.ktir.model import Op, Value
from ...ir.ktir.read_forms import DYNAMIC_NUMBER
from ...ir.ktir.types import DYNAMIC, AccessTile, Future, MemRef, RuntimeArgument, Tensor

if TYPE_CHECKING:
    from .lower import Lowering

_OWN_CORE, _SHARED = -2, -1
_SPACE = re.compile(r"#ktdp\.(?:spyre_memory_space|memory_space)<\s*(\w+)\s*(?:,\s*(?:core|ct_id)\s*=\s*(\d+)\s*)?>")


def memory_space(text: str) -> int | None:
    """The core whose scratchpad it is, _OWN_CORE, _SHARED, or None for what is neither."""
    match = _SPACE.fullmatch(text)
    if match is None:
        return None
    if match[1] in ("HBM", "global"):
        return _SHARED
    if match[1] in ("LX", "ct_local"):
        return int(match[2][:9]) if match[2] else _OWN_CORE
    return None


def set_description(given: IntegerSet) -> dict[str, Any]:
    return {
        "dimensions": given.dims,
        "symbols": given.symbols,
        "rows": [postfix(row) for row in given.rows],
        "equal": list(given.equal),
    }


def map_description(given: AffineMap) -> list[list[int]]:
    return [postfix(e) for e in given.results]


def _space_of(lo: Lowering, op: Op) -> int:
    of = op.results[0].type
    written = op.attributes.get("memory_space")
    text = str(written) if written is not None else of.rest if isinstance(of, MemRef) else ""
    found = re.search(r"#ktdp\.\w+<[^>]*>", text)
    if found is None and written is None:
        return _SHARED
    space = memory_space(found[0] if found else text)
    if space is None:
        raise lo.refuse(f"unknown memory space {text}")
    return space


def _contiguous(shape: tuple[int, ...]) -> list[int]:
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def plain_view(lo: Lowering, base: int, value: Value) -> None:
    """The view that an argument of memref type is."""
    of = value.type
    assert isinstance(of, MemRef)
    if DYNAMIC in of.shape:
        raise lo.refuse(f"an argument of the type {of} has no sizes")
    numbers = [len(of.shape), *of.shape, *_contiguous(of.shape), _SHARED]
    lo.add("view", [base], [lo.slot(value)], type=lo.element(of.element), numbers=numbers)


def _view(lo: Lowering, op: Op) -> None:
    of = op.results[0].type
    assert isinstance(of, MemRef)
    sizes, strides = op.attributes.get("static_sizes"), op.attributes.get("static_strides")
    shape = list(sizes.values) if isinstance(sizes, Numbers) else list(of.shape)
    steps = list(strides.values) if isinstance(strides, Numbers) else _contiguous(of.shape)
    space = _space_of(lo, op)
    lo.uses_scratchpads |= space != _SHARED
    given = op.attributes.get("coordinate_set")
    sets = [set_description(given)] if isinstance(given, IntegerSet) else []
    lo.add(
        "view",
        lo.in_(op.operands),
        lo.in_(op.results),
        type=lo.element(of.element),
        numbers=[len(shape), *shape, *steps, space],
        sets=sets,
    )


def dynamic_sizes(op: Op) -> list[Value]:
    sizes = op.attributes.get("static_sizes")
    count = sizes.values.count(DYNAMIC_NUMBER) if isinstance(sizes, Numbers) else 0
    return op.operands[1 : 1 + count]


def _distributed(lo: Lowering, op: Op) -> None:
    lo.add("distributed_view", lo.in_(op.operands), lo.in_(op.results))


def _symbols(lo: Lowering, op: Op, given: IntegerSet, explicit: list[Value]) -> list[int]:
    """Of a set: the operands that are given for them, or the dynamic sizes of the view."""
    view = op.operands[0].op
    values = explicit or (dynamic_sizes(view) if view is not None else [])
    if given.symbols > len(values):
        raise lo.refuse(f"the set has {given.symbols} symbols, and the view {len(values)} dynamic sizes")
    return lo.in_(values[: given.symbols])


def _set_and_order(lo: Lowering, op: Op, what: str, rank: int) -> tuple[IntegerSet, list[int]]:
    of = op.results[0].type
    assert isinstance(of, AccessTile)
    given = op.attributes.get(f"{what}_set")
    if given is None and DYNAMIC not in of.shape:
        given = box(list(of.shape))
    if not isinstance(given, IntegerSet):
        raise lo.refuse(f"there is no {what}_set")
    order = op.attributes.get(f"{what}_order", identity(rank))
    dims = order.plain_dims if isinstance(order, AffineMap) else None
    if dims is None or sorted(dims) != list(range(given.dims)) or len(of.shape) != given.dims:
        raise lo.refuse(f"{what}_order is no permutation of {given.dims} dimensions")
    return given, dims


def _access(lo: Lowering, op: Op) -> None:
    count = int(op.attributes.get("indices", len(op.operands) - 1))
    of, view = op.results[0].type, op.operands[0].type
    assert isinstance(of, AccessTile) and isinstance(view, MemRef)
    given, order = _set_and_order(lo, op, "access_tile", len(view.shape))
    base = op.attributes.get("base_map", identity(count))
    indices, explicit = op.operands[1 : 1 + count], op.operands[1 + count :]
    if not isinstance(base, AffineMap) or base.dims != count:
        raise lo.refuse(f"base_map does not take {count} indices")
    lo.add(
        "access",
        [*lo.in_(op.operands[:1]), *lo.in_(indices), *_symbols(lo, op, given, explicit)],
        lo.in_(op.results),
        values=[count],
        maps=[map_description(base)],
        numbers=[*order, *of.shape],
        sets=[set_description(given)],
    )


def _indirect(lo: Lowering, op: Op) -> None:
    of = op.results[0].type
    assert isinstance(of, AccessTile)
    given, order = _set_and_order(lo, op, "variables_space", len(of.shape))
    views = [v for v in op.operands[1:] if isinstance(v.type, MemRef)]
    scalars = [v for v in op.operands[1:] if not isinstance(v.type, MemRef)]
    lo.add(
        "indirect_access",
        [*lo.in_([op.operands[0], *views, *scalars]), *_symbols(lo, op, given, [])],
        lo.in_(op.results),
        values=[len(views), len(scalars)],
        maps=[map_description(each) for each in op.attributes["subscripts"]],
        index_views=list(op.attributes["index_views"].values),
        numbers=[*order, *of.shape],
        sets=[set_description(given)],
    )


def _across_cores(view: Value) -> bool:
    """Whether a view may show what other cores hold in their scratchpads."""
    op = view.op
    if op is None:
        return False
    if op.name == "ktdp.construct_distributed_memory_view":
        return any("LX" in text or "ct_local" in text for text in map(_space_text, op.operands))
    text = _space_text(view)
    return "core" in text or "ct_id" in text


def _space_text(view: Value) -> str:
    return str(view.op.attributes.get("memory_space", "")) if view.op is not None else ""


def _load(lo: Lowering, op: Op) -> None:
    access = op.operands[0].op
    meets = access is not None and _across_cores(access.operands[0])
    of = op.results[0].type
    assert isinstance(of, Tensor)
    out = lo.in_(op.results)
    expected = access.operands[0].type if access is not None else None
    loaded = out if not isinstance(of, Tensor) else [lo.fresh(of)]
    at = op.operands[0].type
    same = isinstance(at, AccessTile) and at.shape == of.shape
    lo.add("load", lo.in_(op.operands), out if same else loaded, meets=meets)
    if not same:
        lo.add("reshape", loaded, out, numbers=list(of.shape))
    if isinstance(expected, MemRef) and expected.element != of.element:
        raise lo.refuse(f"a view of {expected.element} is loaded as {of}")


def _store(lo: Lowering, op: Op) -> None:
    access = op.operands[1].op
    lo.add("store", lo.in_(op.operands), [], meets=access is not None and _across_cores(access.operands[0]))


def _tile_id(lo: Lowering, op: Op) -> None:
    lo.add("tile_id", [], lo.in_(op.results))


def _runtime_argument(lo: Lowering, op: Op) -> None:
    of = op.operands[0].type
    if not isinstance(of, RuntimeArgument):
        raise lo.refuse(f"the operand has the type {of}")
    known = ["value", "granularity", "upperbound"]
    fields = [known.index(each) for each in op.attributes["fields"]]
    lo.add(
        "runtime_argument", lo.in_(op.operands), lo.in_(op.results), numbers=[of.granularity, of.upper_bound, *fields]
    )


def _tile_set(lo: Lowering, op: Op, key: str) -> list[dict[str, Any]]:
    given = op.attributes.get(key)
    if not isinstance(given, IntegerSet):
        raise lo.refuse(f"there is no {key}")
    return [set_description(given)]


def _produce(lo: Lowering, op: Op) -> None:
    of = op.results[0].type
    assert isinstance(of, Future)
    groups = of.groups.dims if of.groups is not None else len(op.regions[0].arguments)
    sets = _tile_set(lo, op, "producer_tiles_per_group")
    out = lo.in_(op.results)
    block = lo.block(op.regions[0])
    lo.op = op
    lo.add("produce", [], out, blocks=[block], sets=sets, numbers=[groups], meets=True)


def _reduce(lo: Lowering, op: Op) -> None:
    of = op.results[0].type
    if not isinstance(of, Tensor) or DYNAMIC in of.shape:
        raise lo.refuse(f"the result is a tensor with known sizes, not {of}")
    sets = _tile_set(lo, op, "consumer_tiles_per_group")
    facts = {"sets": sets, "numbers": list(of.shape), "type": lo.element(of.element), "meets": True}
    if op.name == "ktdp.inter_tile_consume":
        lo.add("consume", lo.in_(op.operands[:1]), lo.in_(op.results), **facts)
        return
    if len(op.operands) != 2 or len(op.regions) != 1:
        raise lo.refuse("a reduction has an identity and a body")
    in_, out = lo.in_(op.operands), lo.in_(op.results)
    block = lo.block(op.regions[0])
    lo.op = op
    lo.add("reduce", in_, out, blocks=[block], **facts)


LOWERINGS: dict[str, Callable[[Lowering, Op], None]] = {
    "ktdp.construct_memory_view": _view,
    "ktdp.construct_distributed_memory_view": _distributed,
    "ktdp.construct_access_tile": _access,
    "ktdp.construct_indirect_access_tile": _indirect,
    "ktdp.load": _load,
    "ktdp.store": _store,
    "ktdp.get_compute_tile_id": _tile_id,
    "ktdp.runtime_arg_extract": _runtime_argument,
    "ktdp.inter_tile_produce": _produce,
    "ktdp.inter_tile_reduce": _reduce,
    "ktdp.inter_tile_consume": _reduce,
}
