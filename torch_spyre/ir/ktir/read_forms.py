"""The pretty form of every operation: a function each, from behind the op's name to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .affine import AffineMap, Expression, identity, shifted
from .attributes import Dense, Float, Integer, Numbers
from .model import Op, Region, Value
from .operations import FLOAT_PREDICATES, INTEGER_PREDICATES, OPERATIONS
from .read_attributes import plain_numbers
from .types import (
    I1,
    INDEX,
    AccessTile,
    Future,
    MemRef,
    RuntimeArgument,
    Scalar,
    Tensor,
    Type,
    with_element,
)

if TYPE_CHECKING:
    from .parser import Parser

DYNAMIC_NUMBER = -(1 << 63)  # stands for an operand in a list of static sizes, as in MLIR


def _attributes(p: Parser, op: Op) -> None:
    if p.at("{") and p.is_dictionary():
        op.attributes |= p.dictionary()


def _types_after(p: Parser) -> tuple[list[Type], list[Type]]:
    """`: T, U -> V` or `: T to U`: what stands before and behind the arrow."""
    before: list[Type] = []
    if p.accept(":"):
        before = [] if p.at("->") else _listed(p)
    after: list[Type] = []
    if p.accept("->") or p.accept("to") or p.accept("into"):
        after = p.result_types() if p.at("(") else p.types()
    return before, after


def _listed(p: Parser) -> list[Type]:
    if p.at("("):
        function = p.function_type() if _is_function(p) else None
        if function:
            return [*function.inputs, *function.results]
        return p.result_types()
    return p.types()


def _is_function(p: Parser) -> bool:
    depth = 0
    for i in range(p.start, min(len(p.text), p.start + 2000)):
        depth += {"(": 1, ")": -1}.get(p.text[i], 0)
        if depth == 0:
            return p.text[i + 1 : i + 20].lstrip().startswith("->")
    return False


def _check(p: Parser, op: Op, values: list[Value], types: list[Type]) -> None:
    """The types that stand behind the op are those of its values."""
    if types and [v.type for v in values] != types:
        given = ", ".join(str(v.type) for v in values)
        raise p.error(f"{op.name}: the operands have the types {given}, not {', '.join(map(str, types))}", op.position)


def _flags(p: Parser) -> None:
    """Fast-math and overflow flags allow other results; ours are the plain ones."""
    for word in ("fastmath", "overflow"):
        if p.accept(word):
            p.balanced()


def _elementwise(p: Parser, op: Op) -> None:
    many = p.accept("(")
    op.operands = p.operands(")" if many else "")
    if many:
        p.expect(")")
    _flags(p)
    _attributes(p, op)
    before, after = _types_after(p)
    values = op.operands
    if before:
        if len(before) == 1 and op.name != "arith.select":
            before = before * len(values)
        if op.name == "arith.select" and len(values) == 3:
            condition = before[0] if len(before) == 2 else with_element(before[0], I1)
            if len(before) == 1 and isinstance(values[0].type, Scalar):
                condition = I1
            before = [condition, before[-1], before[-1]]
        _check(p, op, values, before)
    if not values:
        raise p.error(f"{op.name} needs operands", op.position)
    op.result(after[0] if after else values[-1].type)


def _compare(p: Parser, op: Op) -> None:
    predicates = INTEGER_PREDICATES if op.name == "arith.cmpi" else FLOAT_PREDICATES
    name = p.token.strip('"')
    if name not in predicates:
        raise p.expected(f"a predicate of {op.name}")
    p.advance()
    op.attributes["predicate"] = name
    p.expect(",")
    op.operands = p.operands()
    _flags(p)
    _attributes(p, op)
    before, _ = _types_after(p)
    _check(p, op, op.operands, before * len(op.operands))
    op.result(with_element(op.operands[0].type, I1))


def _cast(p: Parser, op: Op) -> None:
    op.operands = [p.operand()]
    _flags(p)
    _attributes(p, op)
    before, after = _types_after(p)
    _check(p, op, op.operands, before)
    if len(after) != 1:
        raise p.expected("'to' and the type of the result")
    op.result(after[0])


def _constant(p: Parser, op: Op) -> None:
    _attributes(p, op)
    at = p.start
    value = p.attribute()
    if isinstance(value, bool):
        op.result(I1)
    elif isinstance(value, Integer | Float | Dense):
        of = value.type
        if isinstance(value, Integer) and isinstance(of, Scalar) and of.is_float:
            value = Float(float(value.value), of)
        op.result(of)
    else:
        raise p.error("expected a number, true, false or dense<...>", at)
    op.attributes["value"] = value


# linalg


def _group(p: Parser, op: Op, word: str) -> list[Value]:
    """`ins(%a, %b : T, U)`"""
    if not p.accept(word):
        return []
    p.expect("(")
    values = [] if p.at(")") or p.at(":") else p.operands()
    if p.accept(":"):
        _check(p, op, values, [] if p.at(")") else p.types())
    p.expect(")")
    return values


def _structured(p: Parser, op: Op) -> None:
    short = _short_body(p, op)
    _attributes(p, op)
    _assignments(p, op)
    inputs, outputs = _group(p, op, "ins"), _group(p, op, "outs")
    op.operands = [*inputs, *outputs]
    op.attributes["inputs"] = len(inputs)
    if p.accept("attrs"):
        p.expect("=")
        op.attributes |= p.dictionary()
    _assignments(p, op)
    _attributes(p, op)
    if p.at("{") or p.at("("):
        region = Region()
        arguments: list[tuple[str, Type, int]] = []
        if p.accept("("):  # arguments in front of the braces
            while not p.accept(")"):
                if arguments:
                    p.expect(",")
                at, name = p.start, p.take("value", "an argument")
                p.expect(":")
                arguments.append((name, p.type(), at))
        p.body(region, ends=True, arguments=arguments)
        op.regions.append(region)
    elif short:
        op.regions.append(_expanded(p, op, short, inputs, outputs))
    _, after = _types_after(p)
    for of in after or [v.type for v in outputs if isinstance(v.type, Tensor)]:
        op.result(of)


def _assignments(p: Parser, op: Op) -> None:
    """`dimensions = [1]`, `permutation = [1, 0]`, `indexing_maps = [...]`"""
    while p.kind == "name" and p.token in ("dimensions", "permutation", "indexing_maps", "iterator_types"):
        key = p.advance()
        p.expect("=")
        value = p.attribute()
        if key in ("dimensions", "permutation"):
            value = plain_numbers(value)
        op.attributes[key] = value


def _short_body(p: Parser, op: Op) -> str:
    """`{ arith.addf }`"""
    if op.name not in ("linalg.reduce", "linalg.map") or not p.at("{"):
        return ""
    p.expect("{")
    if p.token not in OPERATIONS:
        raise p.error(f"unknown operation {p.token}", p.start)
    name = p.advance()
    if p.at("{"):
        p.dictionary()
    p.expect("}")
    return name


def _expanded(p: Parser, op: Op, name: str, inputs: list[Value], outputs: list[Value]) -> Region:
    values = [*inputs, *outputs] if op.name == "linalg.reduce" else inputs
    elements: list[Type] = []
    for value in values:
        if not isinstance(value.type, Tensor):
            raise p.error(f"{op.name} takes tensors", op.position)
        elements.append(value.type.element)
    region = Region([Value(of, f"arg{i}") for i, of in enumerate(elements)])
    inner = Op(name, list(region.arguments), position=op.position)
    if OPERATIONS[name].form != "elementwise" or OPERATIONS[name].operands != len(values):
        raise p.error(f"{op.name} cannot be made of {name}", op.position)
    end = Op("linalg.yield", [inner.result(elements[-1])], position=op.position)
    region.ops = [inner, end]
    return region


def _index(p: Parser, op: Op) -> None:
    op.attributes["dim"] = p.integer()
    _types_after(p)
    op.result(INDEX)


def _yield(p: Parser, op: Op) -> None:
    _attributes(p, op)
    op.operands = p.operands() if p.kind == "value" else []
    before, _ = _types_after(p)
    _check(p, op, op.operands, before)


# tensor


def _empty(p: Parser, op: Op) -> None:
    p.expect("(")
    op.operands = p.operands(")")
    p.expect(")")
    _attributes(p, op)
    op.result(_one_type(p, Tensor))


def _one_type(p: Parser, kind: Any) -> Any:
    """The last type behind the op, which is its result's."""
    at = p.start
    before, after = _types_after(p)
    found = (after or before)[-1:]
    if not found or not isinstance(found[0], kind):
        raise p.error("the op does not end with the type of its result", at)
    return found[0]


def _splat(p: Parser, op: Op) -> None:
    op.operands = [p.operand()]
    if p.accept("["):
        op.operands += p.operands("]")
        p.expect("]")
    _attributes(p, op)
    op.result(_one_type(p, Tensor))


def _extract(p: Parser, op: Op) -> None:
    op.operands = [p.operand()]
    p.expect("[")
    op.operands += p.operands("]")
    p.expect("]")
    _attributes(p, op)
    before, _ = _types_after(p)
    _check(p, op, op.operands[:1], before)
    of = op.operands[0].type
    if not isinstance(of, Tensor):
        raise p.error("tensor.extract takes a tensor", op.position)
    op.result(of.element)


def _numbers(p: Parser, op: Op) -> Numbers:
    """`[0, %i, 4]`: numbers, and operands where they are not known."""
    p.expect("[")
    found: list[int] = []
    first = True
    while not p.accept("]"):
        if not first:
            p.expect(",")
        first = False
        if p.kind == "value":
            op.operands.append(p.operand())
            found.append(DYNAMIC_NUMBER)
        else:
            found.append(p.integer())
    return Numbers("i64", tuple(found))


def _slice(p: Parser, op: Op) -> None:
    op.operands = [p.operand()]
    if op.name == "tensor.insert_slice":
        p.expect("into")
        op.operands.append(p.operand())
    for key in ("static_offsets", "static_sizes", "static_strides"):
        op.attributes[key] = _numbers(p, op)
    _attributes(p, op)
    op.result(_one_type(p, Tensor))


def _reassociate(p: Parser, op: Op) -> None:
    op.operands = [p.operand()]
    op.attributes["reassociation"] = plain_numbers(p.attribute())
    if p.accept("output_shape"):
        op.attributes["static_output_shape"] = _numbers(p, op)
    _attributes(p, op)
    op.result(_one_type(p, Tensor))


def _generate(p: Parser, op: Op) -> None:
    op.operands = p.operands("{") if not p.at("{") else []
    region = Region()
    p.body(region, ends=True)
    op.regions = [region]
    op.result(_one_type(p, Tensor))


def _from_elements(p: Parser, op: Op) -> None:
    op.operands = p.operands() if p.kind == "value" else []
    _attributes(p, op)
    op.result(_one_type(p, Tensor))


def _dim(p: Parser, op: Op) -> None:
    op.operands = p.operands()
    _attributes(p, op)
    _types_after(p)
    op.result(INDEX)


# scf and func


def _for(p: Parser, op: Op) -> None:
    at, name = p.start, p.take("value", "the loop's variable")
    p.expect("=")
    op.operands = [p.operand()]
    p.expect("to")
    op.operands.append(p.operand())
    p.expect("step")
    op.operands.append(p.operand())
    carried: list[tuple[str, int]] = []
    types: list[Type] = []
    if p.accept("iter_args"):
        p.expect("(")
        while not p.accept(")"):
            if carried:
                p.expect(",")
            carried.append((p.token, p.start))
            p.take("value", "a carried value")
            p.expect("=")
            op.operands.append(p.operand())
        p.expect("->")
        types = p.result_types()
        _check(p, op, op.operands[3:], types)
    of: Type = INDEX
    if p.accept(":"):
        of = p.type()
    _attributes(p, op)
    arguments = [(name, of, at), *((n, t, a) for (n, a), t in zip(carried, types, strict=True))]
    region = Region()
    p.body(region, arguments=arguments)
    if not carried and (not region.ops or region.ops[-1].name != "scf.yield"):
        region.ops.append(Op("scf.yield", position=op.position))
    _attributes(p, op)
    op.regions = [region]
    for each in types:
        op.result(each)


def _if(p: Parser, op: Op) -> None:
    op.operands = [p.operand()]
    types = p.result_types() if p.accept("->") else []
    for word in ("", "else"):
        region = Region()
        if not word or p.accept(word):
            p.body(region)
        if not types and (not region.ops or region.ops[-1].name != "scf.yield"):
            region.ops.append(Op("scf.yield", position=op.position))
        op.regions.append(region)
    _attributes(p, op)
    for each in types:
        op.result(each)


def _call(p: Parser, op: Op) -> None:
    op.attributes["callee"] = p.take("symbol", "the name of a function")[1:].strip('"')
    p.expect("(")
    op.operands = p.operands(")")
    p.expect(")")
    _attributes(p, op)
    p.expect(":")
    at = p.start
    types = p.function_type()
    if list(types.inputs) != [v.type for v in op.operands]:
        raise p.error("the operands have other types", at)
    for each in types.results:
        op.result(each)


# ktdp


def _tile_id(p: Parser, op: Op) -> None:
    if p.accept("("):
        p.expect(")")
    _attributes(p, op)
    before, after = _types_after(p)
    for each in after or before or [INDEX]:
        op.result(each)


def _memory_view(p: Parser, op: Op) -> None:
    op.operands = [p.operand()]
    p.accept(",")
    for key, word in (("static_sizes", "sizes"), ("static_strides", "strides")):
        if p.at(word):
            p.advance()
            p.expect(":")
            op.attributes[key] = _numbers(p, op)
            p.accept(",")
    _attributes(p, op)
    op.result(_one_type(p, MemRef))


def _distributed_view(p: Parser, op: Op) -> None:
    p.expect("(")
    op.operands = p.operands()
    if p.accept(":"):
        _check(p, op, op.operands, p.types())
    p.expect(")")
    _attributes(p, op)
    op.result(_one_type(p, MemRef))


class _Names(dict[str, Expression]):
    """Names in a subscript: variables, and values around, which become symbols."""

    def __init__(self, p: Parser, variables: list[str]) -> None:
        super().__init__({name: ("d", i) for i, name in enumerate(variables)})
        self.parser, self.scalars = p, list[Value]()

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.parser.values

    def __missing__(self, name: str) -> Expression:
        value = self.parser.values[name]
        if value not in self.scalars:
            self.scalars.append(value)
        return ("s", self.scalars.index(value))


def _access_tile(p: Parser, op: Op) -> None:
    op.operands = [p.operand()]
    p.expect("[")
    names = _Names(p, [])
    subscripts: list[Expression] = []
    while not p.accept("]"):
        if subscripts:
            p.expect(",")
        subscripts.append(p.expression(names))
    if all(e[0] == "s" for e in subscripts):
        indices, dims = [names.scalars[e[1]] for e in subscripts], None
    else:
        indices, dims = names.scalars, [as_dimensions(e) for e in subscripts]
    op.operands += indices
    op.attributes["indices"] = len(indices)
    if p.accept("["):  # what the set's symbols are
        op.operands += p.operands("]")
        p.expect("]")
    _attributes(p, op)
    given = op.attributes.get("base_map")
    if dims is not None:
        base = given if isinstance(given, AffineMap) else identity(len(dims))
        results = tuple(shifted(e, dict(enumerate(dims))) for e in base.results)
        op.attributes["base_map"] = AffineMap(len(indices), 0, results)
    before, after = _types_after(p)
    _check(p, op, op.operands[:1], before[:1])
    if len(after) != 1 or not isinstance(after[0], AccessTile):
        raise p.error("the op does not end with the type of an access tile", op.position)
    op.result(after[0])


def as_dimensions(e: Expression) -> Expression:
    """With symbols as dimensions."""
    if e[0] == "s":
        return ("d", e[1])
    return e if e[0] in ("c", "d") else (e[0], as_dimensions(e[1]), as_dimensions(e[2]))


def _indirect_access_tile(p: Parser, op: Op) -> None:
    p.expect("intermediate_variables")
    p.expect("(")
    variables: list[str] = []
    while not p.accept(")"):
        if variables:
            p.expect(",")
        at, name = p.start, p.take("value", "a variable")
        if name in variables or name in p.values:
            raise p.error(f"{name} is defined twice", at)
        variables.append(name)
        if p.accept(":"):
            p.type()
    view = p.operand()
    names = _Names(p, variables)
    index_views: list[Value] = []
    subscripts: list[list[Expression]] = []
    indirect: list[int] = []
    p.expect("[")
    while not p.accept("]"):
        if subscripts:
            p.expect(",")
        if p.accept("ind"):
            p.expect("(")
            index_views.append(p.operand())
            p.expect("[")
            at_: list[Expression] = []
            while not p.accept("]"):
                if at_:
                    p.expect(",")
                at_.append(p.expression(names))
            p.expect(")")
            subscripts.append(at_)
            indirect.append(len(index_views))
        else:
            subscripts.append([p.expression(names)])
            indirect.append(-1)
    op.operands = [view, *index_views, *names.scalars]
    _attributes(p, op)
    count = len(names.scalars)
    op.attributes["subscripts"] = [AffineMap(len(variables), count, tuple(each)) for each in subscripts]
    op.attributes["index_views"] = Numbers("i64", tuple(indirect))
    before, after = _types_after(p)
    _check(p, op, op.operands[: len(before)], before[: 1 + len(index_views)])
    if len(after) != 1 or not isinstance(after[0], AccessTile):
        raise p.error("the op does not end with the type of an access tile", op.position)
    op.result(after[0])


def _load(p: Parser, op: Op) -> None:
    op.operands = [p.operand()]
    _attributes(p, op)
    before, after = _types_after(p)
    _check(p, op, op.operands, before)
    if len(after) != 1 or not isinstance(after[0], Tensor):
        raise p.error("ktdp.load ends with '->' and the type of its tile", op.position)
    op.result(after[0])


def _store(p: Parser, op: Op) -> None:
    op.operands = p.operands()
    _attributes(p, op)
    before, after = _types_after(p)
    _check(p, op, op.operands, [*before, *after])


def _runtime_argument(p: Parser, op: Op) -> None:
    fields = [p.name("value, granularity or upperbound")]
    while p.accept(","):
        fields.append(p.name("value, granularity or upperbound"))
    op.attributes["fields"] = list(fields)
    p.expect("from")
    op.operands = [p.operand()]
    _attributes(p, op)
    before, after = _types_after(p)
    of = op.operands[0].type
    if before and before[0] == of:
        before = before[1:]
    given = after or before
    element = of.element if isinstance(of, RuntimeArgument) else of
    for i in range(len(fields)):
        op.result(given[i] if len(given) == len(fields) else element)


def _tile_set(p: Parser, op: Op, key: str) -> None:
    _attributes(p, op)
    while p.kind == "name" and p.token.endswith("_tiles_per_group"):
        if p.token != key:
            raise p.expected(key)
        p.advance()
        p.expect("=")
        op.attributes[key] = p.integer_set()
        p.accept(",")


def _future_type(p: Parser) -> Type:
    """A future's type, whole or without its name."""
    return p.future_body() if p.at("<") else p.type()


def _produce(p: Parser, op: Op) -> None:
    _tile_set(p, op, "producer_tiles_per_group")
    p.expect(":")
    if not p.at("->"):
        if p.accept("("):
            if not p.at(")"):
                p.types()
            p.expect(")")
        else:
            p.type()
    p.expect("->")
    of = _future_type(p)
    if not isinstance(of, Future):
        raise p.error("expected the type of a future", op.position)
    region = Region()
    p.body(region, ends=True)
    op.regions = [region]
    op.result(of)


def _reduce(p: Parser, op: Op) -> None:
    p.expect("(")
    op.operands = [p.operand()]
    p.expect(")")
    _tile_set(p, op, "consumer_tiles_per_group")
    if p.accept("identity"):
        p.expect("(")
        op.operands.append(p.operand())
        if p.accept(":"):
            _check(p, op, op.operands[1:], [p.type()])
        p.expect(")")
        p.accept(",")
    _tile_set(p, op, "consumer_tiles_per_group")
    if p.accept(":"):
        at = p.start
        many = p.at("(")
        if many:
            p.advance()
        given = _future_type(p)
        if many:
            p.expect(")")
        if given != op.operands[0].type and isinstance(given, Future) and given.groups is not None:
            raise p.error(f"the future has the type {op.operands[0].type}", at)
    p.expect("->")
    of = p.result_types()[0]
    if p.at("{"):
        region = Region()
        p.body(region, ends=True)
        op.regions = [region]
    op.result(of)


READERS: dict[str, Callable[[Parser, Op], None]] = {
    "arith.constant": _constant,
    "linalg.index": _index,
    "tensor.empty": _empty,
    "tensor.splat": _splat,
    "tensor.extract": _extract,
    "tensor.extract_slice": _slice,
    "tensor.insert_slice": _slice,
    "tensor.expand_shape": _reassociate,
    "tensor.collapse_shape": _reassociate,
    "tensor.generate": _generate,
    "tensor.from_elements": _from_elements,
    "tensor.dim": _dim,
    "scf.for": _for,
    "scf.if": _if,
    "func.call": _call,
    "ktdp.get_compute_tile_id": _tile_id,
    "ktdp.construct_memory_view": _memory_view,
    "ktdp.construct_distributed_memory_view": _distributed_view,
    "ktdp.construct_access_tile": _access_tile,
    "ktdp.construct_indirect_access_tile": _indirect_access_tile,
    "ktdp.load": _load,
    "ktdp.store": _store,
    "ktdp.runtime_arg_extract": _runtime_argument,
    "ktdp.inter_tile_produce": _produce,
    "ktdp.inter_tile_reduce": _reduce,
    "ktdp.inter_tile_consume": _reduce,
}
_FORMS = {"elementwise": _elementwise, "cast": _cast, "compare": _compare, "structured": _structured, "own": _yield}
for _name, _row in OPERATIONS.items():
    READERS.setdefault(_name, _FORMS[_row.form])
