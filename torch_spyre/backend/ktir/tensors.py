"""Tiles made, taken apart and put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...ir.ktir.affine import identity
from ...ir.ktir.attributes import Numbers
from ...ir.ktir.model import Op, Value
from ...ir.ktir.types import DYNAMIC, Scalar, Tensor
from .bodies import Body
from .linalg import emit_region
from .memory import map_description

if TYPE_CHECKING:
    from .lower import Lowering


def _result(op: Op) -> Tensor:
    of = op.results[0].type
    assert isinstance(of, Tensor)
    return of


def _zero(lo: Lowering, of: Tensor) -> int:
    out = lo.fresh()
    if of.element.is_float or of.element.name == "i1":
        lo.add("real", [], [out], reals=[0.0])
    else:
        lo.add("integer", [], [out], numbers=[0])
    return out


def _empty(lo: Lowering, op: Op) -> None:
    of = _result(op)
    sizes = lo.in_(op.operands)
    lo.add("splat", [_zero(lo, of), *sizes], lo.in_(op.results), type=lo.element(of.element), numbers=list(of.shape))


def _splat(lo: Lowering, op: Op) -> None:
    of = _result(op)
    lo.add("splat", lo.in_(op.operands), lo.in_(op.results), type=lo.element(of.element), numbers=list(of.shape))


def _extract(lo: Lowering, op: Op) -> None:
    lo.add("extract", lo.in_(op.operands), lo.in_(op.results))


def _slice_numbers(op: Op, rank: int) -> list[int]:
    numbers = [rank]
    for key in ("static_offsets", "static_sizes", "static_strides"):
        given = op.attributes.get(key)
        numbers += given.values if isinstance(given, Numbers) else []
    return numbers


def _extract_slice(lo: Lowering, op: Op) -> None:
    source = op.operands[0].type
    assert isinstance(source, Tensor)
    of, rank = _result(op), len(source.shape)
    numbers = _slice_numbers(op, rank)
    if len(numbers) != 1 + 3 * rank:
        raise lo.refuse("the slice has another number of dimensions than the tile")
    sizes = numbers[1 + rank : 1 + 2 * rank]
    lo.add("extract_slice", lo.in_(op.operands), lo.in_(op.results), numbers=[*numbers, *_kept(lo, sizes, of.shape)])


def _kept(lo: Lowering, sizes: list[int], shape: tuple[int, ...]) -> list[int]:
    """Which dimensions of the slice the result has: the others are 1."""
    kept: list[int] = []
    extra = len(sizes) - len(shape)
    for d, n in enumerate(sizes):
        wanted = shape[len(kept)] if len(kept) < len(shape) else None
        fits = wanted is not None and (n == wanted or n < 0 or wanted == DYNAMIC)
        if fits and not (n == 1 and wanted != 1):
            kept.append(d)
        elif n == 1 and extra > 0:
            extra -= 1
        else:
            raise lo.refuse(f"a slice of the sizes {sizes} does not have the shape {list(shape)}")
    return kept


def _insert_slice(lo: Lowering, op: Op) -> None:
    rank = len(_result(op).shape)
    numbers = _slice_numbers(op, rank)
    if len(numbers) != 1 + 3 * rank:
        raise lo.refuse("the slice has another number of dimensions than the tile")
    lo.add("insert_slice", lo.in_(op.operands), lo.in_(op.results), numbers=numbers)


def _reshape(lo: Lowering, op: Op) -> None:
    shape = op.attributes.get("static_output_shape")
    dynamic = op.operands[1:]
    numbers = [DYNAMIC if n < 0 else n for n in shape.values] if isinstance(shape, Numbers) else list(_result(op).shape)
    lo.add("reshape", lo.in_([op.operands[0], *dynamic]), lo.in_(op.results), numbers=numbers)


def _cast(lo: Lowering, op: Op) -> None:
    lo.add("reshape", lo.in_(op.operands), lo.in_(op.results), numbers=list(_result(op).shape))


def _from_elements(lo: Lowering, op: Op) -> None:
    of = _result(op)
    lo.add(
        "from_elements", lo.in_(op.operands), lo.in_(op.results), type=lo.element(of.element), numbers=list(of.shape)
    )


def _dim(lo: Lowering, op: Op) -> None:
    lo.add("size_of", lo.in_(op.operands), lo.in_(op.results))


def _generate(lo: Lowering, op: Op) -> None:
    of, region = _result(op), op.regions[0]
    start = lo.fresh(of)
    lo.add("splat", [_zero(lo, of), *lo.in_(op.operands)], [start], type=lo.element(of.element), numbers=list(of.shape))
    inside = set(region.arguments)
    captured: list[Value] = []
    for each in region.ops:
        captured += [v for v in each.operands if v not in inside and v not in captured]
        inside.update(each.results)
    tiles = [v for v in captured if isinstance(v.type, Tensor)]
    scalars = [v for v in captured if isinstance(v.type, Scalar)]
    body = Body(lo.half)
    known = {v: body.input(str(v.type)) for v in scalars}
    body.input(of.element)
    known |= {argument: body.position(d) for d, argument in enumerate(region.arguments)}
    body.tables = lo.in_(tiles)
    emit_region(lo, body, region, known, tiles, None)
    lo.op = op
    body.results, body.reads_outputs = [body.owned(known[region.end.operands[0]])], False
    rank = len(of.shape)
    lo.add(
        "generic",
        [*lo.in_(scalars), start],
        lo.in_(op.results),
        body=body.description(),
        maps=[*([] for _ in scalars), map_description(identity(rank))],
        reduced=[False] * rank,
    )


LOWERINGS: dict[str, Callable[[Lowering, Op], None]] = {
    "tensor.empty": _empty,
    "tensor.splat": _splat,
    "tensor.extract": _extract,
    "tensor.extract_slice": _extract_slice,
    "tensor.insert_slice": _insert_slice,
    "tensor.expand_shape": _reshape,
    "tensor.collapse_shape": _reshape,
    "tensor.cast": _cast,
    "tensor.from_elements": _from_elements,
    "tensor.dim": _dim,
    "tensor.generate": _generate,
}
