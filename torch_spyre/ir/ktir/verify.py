"""The rules of KTIR, op by op. The engine relies on them; what is known at run time it checks itself."""

from __future__ import annotations

from collections.abc import Callable

from .affine import AffineMap, IntegerSet
from .attributes import Dense, Float, Integer, Numbers
from .model import Func, Module, Op, Region, walk
from .operations import FLOAT_PREDICATES, INTEGER_PREDICATES, OPERATIONS, TERMINATORS
from .read_forms import DYNAMIC_NUMBER
from .types import DYNAMIC, INDEX, AccessTile, Future, MemRef, RuntimeArgument, Scalar, Tensor, Type

MOST_CORES = 4096
_YIELDS = {
    "scf.for": "scf.yield",
    "scf.if": "scf.yield",
    "linalg.generic": "linalg.yield",
    "linalg.reduce": "linalg.yield",
    "linalg.map": "linalg.yield",
    "tensor.generate": "tensor.yield",
    "ktdp.inter_tile_produce": "ktdp.yield_partial",
    "ktdp.inter_tile_reduce": "ktdp.yield_reduced",
    "ktdp.inter_tile_consume": "ktdp.yield_reduced",
}


class _Broken(Exception):
    pass


def verify(module: Module) -> None:
    """Raises KtirError at the first op that breaks a rule."""
    for func in module.functions.values():
        _function(module, func)
    _calls(module)


def _function(module: Module, func: Func) -> None:
    cores = 1
    for n in func.grid:
        cores *= n
    if any(n < 1 for n in func.grid) or cores > MOST_CORES or len(func.grid) > 3:
        raise module.error(func, f"a grid of {func.grid}: up to three dimensions, {MOST_CORES} tiles in all")
    if not func.region.ops or func.region.end.name != "func.return":
        raise module.error(func, "the function does not end with a return")
    for op in walk(func.region):
        try:
            _check_op(module, func, op)
        except _Broken as broken:
            raise module.error(op, str(broken)) from None


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise _Broken(why)


def _check_op(module: Module, func: Func, op: Op) -> None:
    row = OPERATIONS[op.name]
    for region in op.regions:
        _region(op, region)
    _require(len(op.regions) <= 2, "has more regions than two")
    if op.name in _YIELDS and op.name != "ktdp.inter_tile_consume":
        _require(bool(op.regions), "has no body")
    if op.name in TERMINATORS:
        return
    _ELEMENT_CHECKS.get(row.form, lambda _: None)(op)
    check = _CHECKS.get(op.name)
    if check is not None:
        check(op)
    if op.name == "func.call":
        callee = module.functions.get(op.attributes.get("callee", ""))
        _require(callee is not None, f"there is no function @{op.attributes.get('callee')}")
        assert callee is not None
        wanted = [v.type for v in callee.region.arguments]
        _require(wanted == [v.type for v in op.operands], "the arguments have other types")
        _require(
            [v.type for v in callee.region.end.operands] == [v.type for v in op.results], "the results have other types"
        )
        _require(callee.grid == func.grid or callee.grid == [1], "the callee has another grid")


def _region(op: Op, region: Region) -> None:
    wanted = _YIELDS.get(op.name)
    _require(wanted is not None, "has a region")
    _require(bool(region.ops) and region.end.name == wanted, f"its body does not end with {wanted}")
    if op.name in ("scf.for", "scf.if"):
        given, types = [v.type for v in region.end.operands], [v.type for v in op.results]
        _require(_alike(given, types), f"yields {_listed(given)}, its results are {_listed(types)}")
    if op.name == "scf.for":
        _require(len(region.arguments) == len(op.operands) - 2, "its body has another number of arguments")
        given = [v.type for v in op.operands[3:]]
        _require(_alike(given, [v.type for v in op.results]), "carried values have other types than its results")
        _require(
            _alike(given, [v.type for v in region.arguments[1:]]), "carried values have other types than the body's"
        )
    if op.name == "scf.if":
        _require(not region.arguments, "its body has arguments")
    if op.name in ("linalg.generic", "linalg.reduce", "linalg.map"):
        outputs = len(op.operands) - int(op.attributes.get("inputs", 0))
        _require(len(region.end.operands) == outputs, "its body yields another number of values than there are outputs")
        for value, given_ in zip(region.arguments, op.operands, strict=False):
            element = given_.type.element if isinstance(given_.type, Tensor) else given_.type
            _require(value.type == element, f"its body takes {value.type} for a {given_.type}")
    if op.name in ("tensor.generate", "ktdp.inter_tile_produce", "ktdp.inter_tile_reduce"):
        _require(len(region.end.operands) == 1, "its body yields one value")
    if op.name == "ktdp.inter_tile_reduce":
        _require(len(region.arguments) == 2, "its body takes two partials")


def _listed(types: list[Type]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def _alike(a: list[Type], b: list[Type]) -> bool:
    """The same types, sizes that are not known apart."""
    return len(a) == len(b) and all(_fits(x, y) for x, y in zip(a, b, strict=True))


def _fits(a: Type, b: Type) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.element == b.element and len(a.shape) == len(b.shape):
        return all(m == n or DYNAMIC in (m, n) for m, n in zip(a.shape, b.shape, strict=True))
    return a == b


def _element(of: Type) -> Scalar:
    if isinstance(of, Tensor):
        return of.element
    _require(isinstance(of, Scalar), f"{of} is neither a tile nor a scalar")
    assert isinstance(of, Scalar)
    return of


def _shape(of: Type) -> tuple[int, ...] | None:
    return of.shape if isinstance(of, Tensor) else None


def _same_shapes(op: Op) -> None:
    _require(len(op.results) == 1, "has one result")
    shapes = {_shape(v.type) for v in (*op.operands, *op.results)}
    known = [s for s in shapes if s is not None]
    _require(len(shapes) == 1 or all(_fits_shape(known[0], s) for s in known) and None not in shapes, "shapes differ")


def _fits_shape(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) == len(b) and all(m == n or DYNAMIC in (m, n) for m, n in zip(a, b, strict=True))


def _elementwise(op: Op) -> None:
    row = OPERATIONS[op.name]
    _require(len(op.operands) == row.operands, f"takes {row.operands} operands")
    elements = [_element(v.type) for v in op.operands]
    values = elements
    if op.name == "arith.select":
        _require(elements[0].name == "i1", "the condition is an i1")
        condition = op.operands[0].type
        _require(isinstance(condition, Scalar) or _shape(condition) == _shape(op.operands[1].type), "shapes differ")
        _require(op.operands[1].type == op.operands[2].type == op.results[0].type, "both values have the result's type")
        return
    _same_shapes(op)
    if op.name.startswith("spyreop."):
        _require(not row.kind or all(e.is_float for e in elements), "takes floats")
        return
    _require(len(set(values)) == 1, "operands have different element types")
    _kind(row.kind, values[0])
    if row.form == "elementwise":
        _require(_element(op.results[0].type) == values[0], "the result has another element type")


def _kind(kind: str, of: Scalar) -> None:
    if kind:
        _require(of.is_float == (kind == "float"), f"takes {kind}s, not {of}")


def _compare(op: Op) -> None:
    known = INTEGER_PREDICATES if op.name == "arith.cmpi" else FLOAT_PREDICATES
    _require(op.attributes.get("predicate") in known, f"has no predicate {op.attributes.get('predicate')}")
    _elementwise(op)
    _require(_element(op.results[0].type).name == "i1", "the result is an i1")


_FLOAT_TO = {"arith.extf", "arith.truncf", "arith.fptosi", "arith.fptoui"}
_TO_FLOAT = {"arith.extf", "arith.truncf", "arith.sitofp", "arith.uitofp"}
_BITS = {"f16": 16, "bf16": 16, "f32": 32, "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}


def _cast(op: Op) -> None:
    _require(len(op.operands) == 1 and len(op.results) == 1, "takes one operand")
    source, target = _element(op.operands[0].type), _element(op.results[0].type)
    if op.name == "tensor.cast":
        _require(_fits(op.operands[0].type, op.results[0].type), "only sizes that are not known may change")
        return
    _same_shapes(op)
    if op.name in ("arith.bitcast", "tensor.bitcast"):
        _require(_BITS[source.name] == _BITS[target.name] and "i1" not in (source.name, target.name), "sizes differ")
        return
    _require(source.is_float == (op.name in _FLOAT_TO), f"does not take {source}")
    _require(target.is_float == (op.name in _TO_FLOAT), f"does not make {target}")
    wider = _BITS[target.name] - _BITS[source.name]
    if op.name in ("arith.extf", "arith.extsi", "arith.extui"):
        _require(wider > 0, f"{target} is not wider than {source}")
    if op.name in ("arith.truncf", "arith.trunci"):
        _require(wider < 0, f"{target} is not narrower than {source}")


def _structured(op: Op) -> None:
    row, inputs = OPERATIONS[op.name], op.attributes.get("inputs")
    _require(isinstance(inputs, int) and 0 <= inputs < len(op.operands), "has no outputs")
    assert isinstance(inputs, int)
    outputs = op.operands[inputs:]
    _require(
        row.operands < 0 or (inputs == row.operands and len(outputs) == 1), f"takes {row.operands} inputs and an output"
    )
    _require(all(isinstance(v.type, Tensor) for v in outputs), "outputs are tensors")
    _require(
        _alike([v.type for v in outputs], [v.type for v in op.results]), "its results have other types than its outputs"
    )
    maps = op.attributes.get("indexing_maps")
    if maps is not None:
        _require(isinstance(maps, list) and len(maps) == len(op.operands), "has an indexing map for each operand")
        for value, each in zip(op.operands, maps, strict=True):
            _require(isinstance(each, AffineMap) and each.symbols == 0, "indexing_maps are affine maps without symbols")
            rank = len(value.type.shape) if isinstance(value.type, Tensor) else 0
            _require(len(each.results) == rank, f"{each} does not fit a {value.type}")
    if op.name in _NAMED_ELEMENTWISE:
        shape = _shape(outputs[0].type)
        for value in op.operands[:inputs]:
            own = _shape(value.type)
            _require(own is None or (shape is not None and _fits_shape(own, shape)), "shapes differ")
        kinds = {_element(v.type).is_float for v in op.operands[:inputs]}
        if op.name != "linalg.select":
            _require(kinds == {_element(outputs[0].type).is_float}, "operands and output are of different kinds")
    if op.name in ("linalg.reduce", "linalg.broadcast", "linalg.transpose"):
        _dimensions(op, inputs)
    if op.name == "linalg.fill":
        _require(isinstance(op.operands[0].type, Scalar), "fills with a scalar")
        _require(
            op.operands[0].type == _element(outputs[0].type), "the value has another type than the tile's elements"
        )
    if "mat" in op.name.split(".")[1] or op.name in ("linalg.dot", "linalg.vecmat"):
        _require(
            all(isinstance(v.type, Tensor) and v.type.element.is_float for v in op.operands),
            "multiplies tiles of floats",
        )


_NAMED_ELEMENTWISE = {
    *(f"linalg.{name}" for name in ("add", "sub", "mul", "div", "max", "min", "powf", "select", "copy", "square")),
    *(f"linalg.{name}" for name in ("exp", "sqrt", "rsqrt", "tanh", "erf", "log", "negf", "abs", "reciprocal")),
    *(f"linalg.{name}" for name in ("floor", "ceil")),
}


def _dimensions(op: Op, inputs: int) -> None:
    shapes = [_shape(v.type) for v in op.operands]
    _require(all(s is not None for s in shapes), "takes tensors")
    source, target = shapes[0] or (), shapes[inputs] or ()
    key = "permutation" if op.name == "linalg.transpose" else "dimensions"
    dims = op.attributes.get(key)
    _require(isinstance(dims, list) and all(isinstance(d, int) for d in dims), f"has no {key}")
    assert isinstance(dims, list)
    _require(len(set(dims)) == len(dims), f"{key} names a dimension twice")
    longer = target if op.name == "linalg.broadcast" else source
    _require(all(0 <= d < len(longer) for d in dims), f"{key} = {dims}, of {len(longer)} dimensions")
    if op.name == "linalg.transpose":
        _require(len(dims) == len(source), "permutation names every dimension")
        wanted = tuple(source[d] for d in dims)
    elif op.name == "linalg.broadcast":
        wanted, target = tuple(n for d, n in enumerate(target) if d not in dims), source
    else:
        wanted = tuple(n for d, n in enumerate(source) if d not in dims)
    _require(
        _fits_shape(wanted, target),
        f"the shapes {list(source)} and {list(shapes[inputs] or ())} do not fit {key} = {dims}",
    )


def _constant(op: Op) -> None:
    value, of = op.attributes.get("value"), op.results[0].type
    if isinstance(value, bool):
        _require(of == Scalar("i1"), "true and false are i1")
        return
    _require(isinstance(value, Integer | Float | Dense), "has no value")
    assert isinstance(value, Integer | Float | Dense)
    _require(value.type == of, f"its value is {value.type}, its result {of}")
    _require(
        not (isinstance(value, Integer) and isinstance(of, Scalar) and of.is_float), "a float needs a float's value"
    )


def _indices(op: Op, first: int, count: int) -> None:
    given = op.operands[first:]
    _require(len(given) == count, f"takes {count} indices")
    _require(all(v.type == INDEX for v in given), "indices are of the type index")


def _extract(op: Op) -> None:
    of = op.operands[0].type
    _require(isinstance(of, Tensor), "takes a tensor")
    assert isinstance(of, Tensor)
    _indices(op, 1, len(of.shape))
    _require(op.results[0].type == of.element, "the result has another type than the tile's elements")


def _dynamic(op: Op, key: str) -> int:
    given = op.attributes.get(key)
    _require(isinstance(given, Numbers), f"has no {key}")
    assert isinstance(given, Numbers)
    return given.values.count(DYNAMIC_NUMBER)


def _slice(op: Op) -> None:
    first = 2 if op.name == "tensor.insert_slice" else 1
    count = sum(_dynamic(op, key) for key in ("static_offsets", "static_sizes", "static_strides"))
    _indices(op, first, count)
    whole = op.operands[first - 1].type
    _require(isinstance(whole, Tensor) and isinstance(op.operands[0].type, Tensor), "takes tensors")
    assert isinstance(whole, Tensor)
    for key in ("static_offsets", "static_sizes", "static_strides"):
        _require(len(op.attributes[key].values) == len(whole.shape), f"{key} has another number of dimensions")
    result = op.results[0].type
    _require(
        isinstance(result, Tensor) and result.element == _element(op.operands[0].type), "the result has another type"
    )
    if first == 2:
        _require(_fits(result, whole), "the result has the type of the tile that is inserted into")


def _sized(op: Op, first: int) -> None:
    of = op.results[0].type
    _require(isinstance(of, Tensor), "makes a tensor")
    assert isinstance(of, Tensor)
    _indices(op, first, of.shape.count(DYNAMIC))


def _splat(op: Op) -> None:
    _sized(op, 1)
    _require(op.operands[0].type == _element(op.results[0].type), "the value has another type than the tile's elements")


def _generate(op: Op) -> None:
    _sized(op, 0)
    rank = len(_shape(op.results[0].type) or ())
    _require([v.type for v in op.regions[0].arguments] == [INDEX] * rank, f"its body takes {rank} indices")
    _require(op.regions[0].end.operands[0].type == _element(op.results[0].type), "its body yields another type")


def _reshape(op: Op) -> None:
    _require(isinstance(op.operands[0].type, Tensor) and isinstance(op.results[0].type, Tensor), "takes a tensor")
    source, target = op.operands[0].type, op.results[0].type
    assert isinstance(source, Tensor) and isinstance(target, Tensor)
    _require(source.element == target.element, "the result has another element type")
    if source.static and target.static:
        _require(source.bytes == target.bytes, f"{source} and {target} have different numbers of elements")


def _from_elements(op: Op) -> None:
    of = op.results[0].type
    _require(isinstance(of, Tensor) and of.static, "makes a tensor with known sizes")
    assert isinstance(of, Tensor)
    count = 1
    for n in of.shape:
        count *= n
    _require(
        len(op.operands) == count and all(v.type == of.element for v in op.operands), f"takes {count} of {of.element}"
    )


def _for(op: Op) -> None:
    _require(len(op.operands) >= 3, "has no bounds")
    bounds = {v.type for v in op.operands[:3]}
    _require(len(bounds) == 1 and not _element(next(iter(bounds))).is_float, "bounds are integers of one type")
    _require(len(op.regions) == 1, "has one body")


def _if(op: Op) -> None:
    _require(len(op.operands) == 1 and op.operands[0].type == Scalar("i1"), "its condition is an i1")
    _require(len(op.regions) == 2 or not op.results, "has results and no else")


def _view(op: Op) -> None:
    of = op.results[0].type
    _require(bool(op.operands) and isinstance(of, MemRef), "has a base and a memref")
    assert isinstance(of, MemRef)
    _require(_element(op.operands[0].type).name in ("index", "i64", "i32"), "its base is an index")
    count = 0
    for key in ("static_sizes", "static_strides"):
        if key in op.attributes:
            count += _dynamic(op, key)
            _require(
                len(op.attributes[key].values) == len(of.shape), f"{key} has another number of dimensions than {of}"
            )
    _require("static_sizes" in op.attributes or DYNAMIC not in of.shape, "has no sizes")
    if "static_sizes" in op.attributes:
        wanted = tuple(DYNAMIC if n == DYNAMIC_NUMBER else n for n in op.attributes["static_sizes"].values)
        _require(_fits_shape(wanted, of.shape), f"the sizes {list(wanted)} are not those of {of}")
    _indices(op, 1, count)
    given = op.attributes.get("coordinate_set")
    if given is not None:
        _require(isinstance(given, IntegerSet) and given.dims == len(of.shape), f"coordinate_set does not fit {of}")
        dynamic = _dynamic(op, "static_sizes") if "static_sizes" in op.attributes else 0
        _require(given.symbols <= dynamic, f"coordinate_set has {given.symbols} symbols for {dynamic} dynamic sizes")


def _distributed(op: Op) -> None:
    _require(bool(op.operands) and all(isinstance(v.type, MemRef) for v in op.operands), "takes views")
    of = op.results[0].type
    for value in op.operands:
        assert isinstance(value.type, MemRef)
        _require(
            isinstance(of, MemRef) and value.type.element == of.element and len(value.type.shape) == len(of.shape),
            "its parts have another element type or another number of dimensions",
        )


def _order(op: Op, key: str, rank: int) -> None:
    given = op.attributes.get(key)
    if given is not None:
        _require(isinstance(given, AffineMap) and given.dims == rank, f"{key} does not have {rank} dimensions")


def _access(op: Op) -> None:
    view, of = op.operands[0].type if op.operands else None, op.results[0].type
    _require(isinstance(view, MemRef) and isinstance(of, AccessTile), "takes a view and makes an access tile")
    assert isinstance(view, MemRef) and isinstance(of, AccessTile)
    rank = len(view.shape)
    _require(len(of.shape) == rank, f"{of} has another number of dimensions than {view}")
    _require(all(v.type == INDEX for v in op.operands[1:]), "indices are of the type index")
    base, count = op.attributes.get("base_map"), op.attributes.get("indices", len(op.operands) - 1)
    _require(isinstance(count, int) and 0 <= count <= len(op.operands) - 1, "has no number of indices")
    _require(
        isinstance(base, AffineMap)
        and base.dims == count
        and len(base.results) == rank
        or base is None
        and count == rank,
        f"its indices do not make {rank} coordinates",
    )
    given = op.attributes.get("access_tile_set")
    _require(
        given is None or (isinstance(given, IntegerSet) and given.dims == rank),
        f"access_tile_set does not have {rank} dimensions",
    )
    _order(op, "access_tile_order", rank)


def _indirect(op: Op) -> None:
    view, of = op.operands[0].type if op.operands else None, op.results[0].type
    _require(isinstance(view, MemRef) and isinstance(of, AccessTile), "takes a view and makes an access tile")
    assert isinstance(view, MemRef) and isinstance(of, AccessTile)
    subscripts, indices = op.attributes.get("subscripts"), op.attributes.get("index_views")
    _require(
        isinstance(subscripts, list)
        and isinstance(indices, Numbers)
        and len(subscripts) == len(indices.values) == len(view.shape),
        f"has a subscript for each dimension of {view}",
    )
    assert isinstance(subscripts, list) and isinstance(indices, Numbers)
    views = sum(isinstance(v.type, MemRef) for v in op.operands[1:])
    scalars = len(op.operands) - 1 - views
    for each, at in zip(subscripts, indices.values, strict=True):
        _require(isinstance(each, AffineMap) and each.dims == len(of.shape), "a subscript is over the variables")
        _require(each.symbols <= scalars, "a subscript has a symbol without a value")
        _require(at == -1 or 1 <= at <= views, "an index view that is not among the operands")
        if at >= 1:
            index = op.operands[at].type
            _require(
                isinstance(index, MemRef) and len(index.shape) == len(each.results),
                "an index view has other dimensions",
            )
            assert isinstance(index, MemRef)
            _require(not index.element.is_float, "indices are integers")
        else:
            _require(len(each.results) == 1, "a subscript is one expression")
    _require(
        all(isinstance(v.type, MemRef) for v in op.operands[1 : 1 + views])
        and all(v.type == INDEX for v in op.operands[1 + views :]),
        "its operands are the view, index views and indices",
    )
    given = op.attributes.get("variables_space_set")
    _require(
        given is None or (isinstance(given, IntegerSet) and given.dims == len(of.shape)),
        "variables_space_set has other dimensions",
    )
    _order(op, "variables_space_order", len(of.shape))


def _load(op: Op) -> None:
    _require(len(op.operands) == 1 and isinstance(op.operands[0].type, AccessTile), "takes an access tile")
    of, at = op.results[0].type, op.operands[0].type
    assert isinstance(at, AccessTile)
    _require(isinstance(of, Tensor), "makes a tensor")
    assert isinstance(of, Tensor)
    _moved(op, at, of, op.operands[0].op)


def _store(op: Op) -> None:
    _require(
        len(op.operands) == 2
        and isinstance(op.operands[0].type, Tensor)
        and isinstance(op.operands[1].type, AccessTile),
        "takes a tensor and an access tile",
    )
    of, at = op.operands[0].type, op.operands[1].type
    assert isinstance(of, Tensor) and isinstance(at, AccessTile)
    _moved(op, at, of, op.operands[1].op)


def _moved(op: Op, at: AccessTile, of: Tensor, source: Op | None) -> None:
    known = [n for n in at.shape if n != 1], [n for n in of.shape if n != 1]
    _require(DYNAMIC in (*at.shape, *of.shape) or known[0] == known[1], f"{at} does not hold a {of}")
    view = source.operands[0].type if source is not None and source.operands else None
    if isinstance(view, MemRef):
        _require(view.element == of.element, f"the view holds {view.element}, the tile {of.element}")


def _runtime_argument(op: Op) -> None:
    _require(len(op.operands) == 1 and isinstance(op.operands[0].type, RuntimeArgument), "takes a runtime argument")
    fields = op.attributes.get("fields", [])
    _require(
        isinstance(fields, list)
        and len(fields) == len(op.results)
        and set(fields) <= {"value", "granularity", "upperbound"},
        "extracts value, granularity or upperbound",
    )


def _produce(op: Op) -> None:
    of = op.results[0].type
    _require(isinstance(of, Future), "makes a future")
    assert isinstance(of, Future)
    _require(
        op.regions[0].end.operands[0].type == of.element,
        f"its body yields {op.regions[0].end.operands[0].type}, not {of.element}",
    )
    _require(isinstance(op.attributes.get("producer_tiles_per_group"), IntegerSet), "has no producer_tiles_per_group")
    groups = of.groups.dims if of.groups is not None else len(op.regions[0].arguments)
    _require(groups >= len(op.regions[0].arguments), "its body takes more group coordinates than there are")


def _consume(op: Op) -> None:
    _require(bool(op.operands) and isinstance(op.operands[0].type, Future), "takes a future")
    _require(isinstance(op.attributes.get("consumer_tiles_per_group"), IntegerSet), "has no consumer_tiles_per_group")
    _require(isinstance(op.results[0].type, Tensor), "makes a tensor")
    if op.name == "ktdp.inter_tile_reduce":
        _require(len(op.operands) == 2, "has no identity")


def _one_result(check: Callable[[Op], None]) -> Callable[[Op], None]:
    def checked(op: Op) -> None:
        _require(len(op.results) == 1, f"has {len(op.results)} results instead of one")
        check(op)

    return checked


def _dim(op: Op) -> None:
    _require(len(op.operands) == 2 and isinstance(op.operands[0].type, Tensor), "takes a tensor and an index")


def _tile_id(op: Op) -> None:
    _require(0 < len(op.results) <= 3 and all(v.type == INDEX for v in op.results), "gives one to three indices")


_ELEMENT_CHECKS: dict[str, Callable[[Op], None]] = {
    "elementwise": _elementwise,
    "compare": _compare,
    "cast": _cast,
    "structured": _structured,
}
_CHECKS: dict[str, Callable[[Op], None]] = {
    "arith.constant": _one_result(_constant),
    "tensor.empty": _one_result(lambda op: _sized(op, 0)),
    "tensor.splat": _one_result(_splat),
    "tensor.extract": _one_result(_extract),
    "tensor.extract_slice": _one_result(_slice),
    "tensor.insert_slice": _one_result(_slice),
    "tensor.expand_shape": _one_result(_reshape),
    "tensor.collapse_shape": _one_result(_reshape),
    "tensor.generate": _one_result(_generate),
    "tensor.from_elements": _one_result(_from_elements),
    "tensor.dim": _one_result(_dim),
    "scf.for": _for,
    "scf.if": _if,
    "ktdp.get_compute_tile_id": _tile_id,
    "ktdp.construct_memory_view": _one_result(_view),
    "ktdp.construct_distributed_memory_view": _one_result(_distributed),
    "ktdp.construct_access_tile": _one_result(_access),
    "ktdp.construct_indirect_access_tile": _one_result(_indirect),
    "ktdp.load": _one_result(_load),
    "ktdp.store": _store,
    "ktdp.runtime_arg_extract": _runtime_argument,
    "ktdp.inter_tile_produce": _one_result(_produce),
    "ktdp.inter_tile_reduce": _one_result(_consume),
    "ktdp.inter_tile_consume": _one_result(_consume),
}


def _calls(module: Module) -> None:
    """A future is used once; functions do not call themselves."""
    for func in module.functions.values():
        uses: dict[int, int] = {}
        made: dict[int, Op] = {}
        for op in walk(func.region):
            for value in op.operands:
                if isinstance(value.type, Future):
                    uses[id(value)] = uses.get(id(value), 0) + 1
                    if uses[id(value)] > 1:
                        raise module.error(op, "a future has one use, and this is another")
            for value in op.results:
                if isinstance(value.type, Future):
                    made[id(value)] = op
        for key, op in made.items():
            if key not in uses:
                raise module.error(op, "nobody consumes the future")
    state: dict[str, int] = {}

    def visit(name: str, depth: int) -> None:
        state[name] = 1
        for op in walk(module.functions[name].region):
            if op.name != "func.call":
                continue
            callee = op.attributes["callee"]
            if state.get(callee) == 1 or depth > 64:
                raise module.error(op, f"@{callee} calls itself")
            if callee not in state:
                visit(callee, depth + 1)
        state[name] = 2

    for name in module.functions:
        if name not in state:
            visit(name, 0)
