"""Structured ops: elementwise ones, loop nests, folds, and nests that are matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...ir.ktir.affine import AffineMap, identity
from ...ir.ktir.model import Op, Region, Value
from ...ir.ktir.types import DYNAMIC, Scalar, Tensor
from .bodies import COMBINES, TRUTHS, Body, emit, rounded
from .memory import map_description

if TYPE_CHECKING:
    from .lower import Lowering

_ELEMENTWISE = {
    "add": ("arith.addf", "arith.addi"),
    "sub": ("arith.subf", "arith.subi"),
    "mul": ("arith.mulf", "arith.muli"),
    "div": ("arith.divf", "arith.divsi"),
    "max": ("arith.maximumf", "arith.maxsi"),
    "min": ("arith.minimumf", "arith.minsi"),
    "powf": ("math.powf", ""),
    "abs": ("math.absf", "math.absi"),
    "negf": ("arith.negf", ""),
    "reciprocal": ("spyreop.reciprocal", ""),
    "select": ("arith.select", "arith.select"),
    **{name: (f"math.{name}", "") for name in ("exp", "sqrt", "rsqrt", "tanh", "erf", "log", "floor", "ceil")},
}
# The loops of each operand of a product.
_PRODUCTS = {
    "matmul": ("mk", "kn", "mn"),
    "matmul_transpose_a": ("km", "kn", "mn"),
    "matmul_transpose_b": ("mk", "nk", "mn"),
    "batch_matmul": ("bmk", "bkn", "bmn"),
    "batch_matmul_transpose_a": ("bkm", "bkn", "bmn"),
    "batch_matmul_transpose_b": ("bmk", "bnk", "bmn"),
    "matvec": ("mk", "k", "m"),
    "vecmat": ("k", "kn", "n"),
    "batch_matvec": ("bmk", "bk", "bm"),
    "dot": ("k", "k", ""),
}


def _tensor(lo: Lowering, value: Value) -> Tensor:
    if not isinstance(value.type, Tensor):
        raise lo.refuse(f"an operand has the type {value.type}, and a tile is needed")
    return value.type


def _elementwise(lo: Lowering, op: Op) -> None:
    name = op.name.removeprefix("linalg.")
    count = int(op.attributes["inputs"])
    inputs, of = op.operands[:count], _tensor(lo, op.operands[-1])
    body = Body(lo.half)
    elements = [v.type.element if isinstance(v.type, Tensor) else v.type for v in inputs]
    registers = [body.input(str(e)) for e in elements]
    if name == "square":
        result = body.tile_op("mul", [registers[0], registers[0]], of.element)
    elif name == "copy":
        result = body.other("cast", registers, of.element)
    else:
        scalar_op = _ELEMENTWISE[name][0 if of.element.is_float else 1]
        found = emit(body, scalar_op, op.attributes, registers, of.element)
        if found is None:
            raise lo.refuse(f"there is no {op.name} of {of.element}")
        result = found
    body.results = [result]
    lo.add("compute", lo.in_(inputs), lo.in_(op.results), body=body.description())


def _fill(lo: Lowering, op: Op) -> None:
    of = _tensor(lo, op.operands[-1])
    sizes = sizes_of(lo, op.operands[-1])
    value = lo.slot(op.operands[0])
    lo.add("splat", [value, *sizes], lo.in_(op.results), type=lo.element(of.element), numbers=list(of.shape))


def sizes_of(lo: Lowering, value: Value) -> list[int]:
    """The dynamic sizes of a tile."""
    found = []
    for d, n in enumerate(_tensor(lo, value).shape):
        if n == DYNAMIC:
            found.append(lo.fresh())
            dimension = lo.integer(d)
            lo.add("size_of", [lo.slot(value), dimension], [found[-1]])
    return found


def _product(lo: Lowering, op: Op) -> None:
    loops = _PRODUCTS[op.name.removeprefix("linalg.")]
    maps = op.attributes.get("indexing_maps")
    if isinstance(maps, list) and len(maps) == 3:
        return _contract(lo, op, maps)
    names = sorted(set("".join(loops)))
    as_maps = [AffineMap(len(names), 0, tuple(("d", names.index(c)) for c in each)) for each in loops]
    return _contract(lo, op, as_maps)


def _contract(lo: Lowering, op: Op, maps: list[AffineMap]) -> None:
    if any(m.plain_dims is None for m in maps):
        raise lo.refuse("a product takes maps of plain dimensions")
    for value in op.operands:
        _tensor(lo, value)
    lo.add("contract", lo.in_(op.operands), lo.in_(op.results), maps=[map_description(m) for m in maps])


def _generic(lo: Lowering, op: Op) -> None:
    maps, iterators = op.attributes.get("indexing_maps"), op.attributes.get("iterator_types")
    if not isinstance(maps, list) or not all(isinstance(m, AffineMap) for m in maps) or len(maps) != len(op.operands):
        raise lo.refuse("there is no indexing map for each operand")
    if not isinstance(iterators, list) or any(m.dims != len(iterators) for m in maps):
        raise lo.refuse("iterator_types has another number of loops than the maps")
    reduced = [str(each).strip('"') == "reduction" for each in iterators]
    nest(lo, op, int(op.attributes["inputs"]), maps, reduced)


def nest(lo: Lowering, op: Op, inputs: int, maps: list[AffineMap], reduced: list[bool]) -> None:
    """A loop nest with the op's region as its body."""
    region = op.regions[0]
    if any(reduced) and inputs == 2 and len(op.results) == 1 and _is_product(region, maps, op):
        return _contract(lo, op, maps)
    if len(region.arguments) != len(op.operands):
        raise lo.refuse("the body has another number of arguments than the op has operands")
    captured = _captured(region)
    outer_tiles = [v for v in captured if isinstance(v.type, Tensor)]
    scalars = [v for v in captured if isinstance(v.type, Scalar)]
    combine, value = _fold(region, inputs) if any(reduced) and len(op.results) == 1 else ("", None)
    # Registers of inputs come first, then scalars from around, then outputs.
    order = [*region.arguments[:inputs], *scalars, *region.arguments[inputs:]]
    body = Body(lo.half)
    known: dict[Value, int] = {each: body.input(str(each.type)) for each in order}
    body.tables = [lo.slot(v) for v in outer_tiles]
    skipped = region.end.operands[0].op if combine else None
    emit_region(lo, body, region, known, outer_tiles, skipped)
    ends = [value] if value is not None else region.end.operands
    for end in ends:
        if end not in known:
            raise lo.refuse("the body yields a value that no element has")
        body.results.append(body.owned(known[end]))
    outputs = {known[a] for a in region.arguments[inputs:]}
    body.reads_outputs = (
        any(reduced)
        or bool(outputs & {r for each in body.ops for r in each["in"]})
        or bool(outputs & set(body.results))
    )
    lo.op = op
    empty: list[list[int]] = []
    described = [map_description(m) for m in maps]
    lo.add(
        "generic",
        [*lo.in_(op.operands[:inputs]), *lo.in_(scalars), *lo.in_(op.operands[inputs:])],
        lo.in_(op.results),
        body=body.description(),
        maps=[*described[:inputs], *(empty for _ in scalars), *described[inputs:]],
        reduced=reduced,
        combine=combine,
    )


def _captured(region: Region) -> list[Value]:
    inside = set(region.arguments)
    found: list[Value] = []
    for op in region.ops:
        for value in op.operands:
            if value not in inside and value not in found:
                found.append(value)
        inside.update(op.results)
    return found


def emit_region(
    lo: Lowering, body: Body, region: Region, known: dict[Value, int], tiles: list[Value], skipped: Op | None
) -> None:
    """Every op of a body as operations between registers."""
    for op in region.ops[:-1]:
        lo.op = op
        if op is skipped:
            continue
        if op.name == "linalg.index":
            known[op.results[0]] = body.position(int(op.attributes["dim"]))
            continue
        if op.name == "arith.constant":
            value, of = op.attributes["value"], op.results[0].type
            if not isinstance(of, Scalar):
                raise lo.refuse("a body computes single elements")
            known[op.results[0]] = body.constant(_rounded(getattr(value, "value", value), of, lo.half), of)
            continue
        if op.name == "tensor.extract":
            table = op.operands[0]
            if table not in tiles:
                raise lo.refuse("a body extracts from a tile outside of it")
            at = [known[v] for v in op.operands[1:]]
            of = op.results[0].type
            assert isinstance(of, Scalar)
            known[op.results[0]] = body.other("extract", at, of, table=tiles.index(table))
            continue
        if not op.results:
            raise lo.refuse("a body computes single elements")
        of = op.results[0].type
        if not isinstance(of, Scalar) or any(v not in known for v in op.operands):
            raise lo.refuse("a body computes single elements")
        result = emit(body, op.name, op.attributes, [known[v] for v in op.operands], of)
        if result is None:
            raise lo.refuse("this engine does not know the operation in a body")
        known[op.results[0]] = result


def _rounded(value: Any, of: Scalar, half: str) -> float:
    return rounded(float(value), of, half) if of.is_float else value


def _fold(region: Region, inputs: int) -> tuple[str, Value | None]:
    """The tile operation that folds, and what it folds, where the body is `combine(accumulator, value)`."""
    end = region.end.operands[0] if len(region.end.operands) == 1 else None
    op = end.op if end is not None else None
    if op is None or op.name not in COMBINES or len(op.operands) != 2 or op not in region.ops:
        return "", None
    accumulator = region.arguments[inputs]
    uses = sum(v is accumulator for each in region.ops for v in each.operands)
    end_uses = sum(v is end for each in region.ops for v in each.operands)
    if uses != 1 or end_uses != 1 or accumulator not in op.operands:
        return "", None
    value = op.operands[1] if op.operands[0] is accumulator else op.operands[0]
    name = COMBINES[op.name]
    if str(accumulator.type) == "i1":
        name = TRUTHS[op.name].tile_op if op.name in TRUTHS else ""
    return (name, value) if name else ("", None)


def _is_product(region: Region, maps: list[AffineMap], op: Op) -> bool:
    """Whether the body is `accumulator + a * b`, with casts of a and b to a wider type at most."""
    dims = [m.plain_dims for m in maps]
    if any(d is None or len(set(d)) != len(d) for d in dims) or len(region.arguments) != 3:
        return False
    of_a, of_b, of_c = (set(d) for d in dims if d is not None)
    counts = [(d in of_a) + (d in of_b) + (d in of_c) for d in range(maps[0].dims)]
    if min(counts, default=0) < 2 or (of_a | of_b | of_c) != set(range(maps[0].dims)) or not (of_a & of_b) - of_c:
        return False
    a, b, c = region.arguments
    total = region.end.operands[0].op
    if total is None or total.name != "arith.addf" or len(region.end.operands) != 1:
        return False
    product = next((v.op for v in total.operands if v is not c and v.op is not None), None)
    if product is None or product.name != "arith.mulf" or c not in total.operands or product not in region.ops:
        return False

    def source(value: Value) -> Value:
        while value.op is not None and value.op.name in ("arith.extf",) and value.op in region.ops:
            value = value.op.operands[0]
        return value

    if {source(v) for v in product.operands} != {a, b}:
        return False
    return all(o.name in ("arith.extf", "arith.mulf", "arith.addf", "linalg.yield") for o in region.ops)


def _reduce(lo: Lowering, op: Op) -> None:
    inputs = int(op.attributes["inputs"])
    rank = len(_tensor(lo, op.operands[0]).shape)
    folded = [int(d) for d in op.attributes.get("dimensions", [])]
    kept = AffineMap(rank, 0, tuple(("d", d) for d in range(rank) if d not in folded))
    maps = [identity(rank)] * inputs + [kept] * (len(op.operands) - inputs)
    nest(lo, op, inputs, maps, [d in folded for d in range(rank)])


def _map(lo: Lowering, op: Op) -> None:
    inputs = int(op.attributes["inputs"])
    rank = len(_tensor(lo, op.operands[-1]).shape)
    region = op.regions[0]
    if len(region.arguments) == inputs:  # the output is none of the body's arguments
        of = _tensor(lo, op.operands[-1])
        region = Region([*region.arguments, Value(of.element)], region.ops)
    whole = Op(op.name, op.operands, op.results, op.attributes, [region], op.position)
    nest(lo, whole, inputs, [identity(rank)] * len(op.operands), [False] * rank)


def _moved(lo: Lowering, op: Op, source: AffineMap) -> None:
    """The input's elements in other places."""
    of = _tensor(lo, op.operands[0])
    body = Body(lo.half)
    body.input(of.element)
    body.input(_tensor(lo, op.operands[1]).element)
    body.results, body.reads_outputs, body.plain = [0], False, 1
    lo.add(
        "generic",
        lo.in_(op.operands),
        lo.in_(op.results),
        body=body.description(),
        maps=[map_description(source), map_description(identity(source.dims))],
        reduced=[False] * source.dims,
    )


def _broadcast(lo: Lowering, op: Op) -> None:
    rank = len(_tensor(lo, op.operands[1]).shape)
    added = [int(d) for d in op.attributes.get("dimensions", [])]
    _moved(lo, op, AffineMap(rank, 0, tuple(("d", d) for d in range(rank) if d not in added)))


def _transpose(lo: Lowering, op: Op) -> None:
    order = [int(d) for d in op.attributes.get("permutation", [])]
    if sorted(order) != list(range(len(_tensor(lo, op.operands[0]).shape))):
        raise lo.refuse("permutation does not name every dimension once")
    _moved(lo, op, AffineMap(len(order), 0, tuple(("d", order.index(d)) for d in range(len(order)))))


LOWERINGS: dict[str, Callable[[Lowering, Op], None]] = {
    **{f"linalg.{name}": _elementwise for name in (*_ELEMENTWISE, "square", "copy")},
    **{f"linalg.{name}": _product for name in _PRODUCTS},
    "linalg.fill": _fill,
    "linalg.generic": _generic,
    "linalg.reduce": _reduce,
    "linalg.map": _map,
    "linalg.broadcast": _broadcast,
    "linalg.transpose": _transpose,
}
