"""A module as text: in pretty form, or every op in generic form. What is printed is read back as the same module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .affine import Expression, text_of
from .attributes import Float, Numbers, dictionary
from .attributes import Integer as IntegerAttribute
from .attributes import text_of as attribute_text
from .model import Func, Module, Op, Region, Value
from .operations import FLOAT_PREDICATES, INTEGER_PREDICATES, OPERATIONS
from .read_forms import DYNAMIC_NUMBER
from .types import Future, MemRef, Scalar


def show(module: Module, generic: bool = False) -> str:
    lines = [f"module attributes {dictionary(module.attributes)} {{" if module.attributes else "module {"]
    for func in module.functions.values():
        lines += _Printer(generic).function(func)
    return "\n".join([*lines, "}", ""])


class _Printer:
    def __init__(self, generic: bool) -> None:
        self.generic = generic
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()

    def name(self, value: Value) -> str:
        found = self.names.get(value)
        if found is None:
            wanted = value.name.replace("#", "_") or str(len(self.names))
            found, count = wanted, 0
            while found in self.taken:
                count += 1
                found = f"{wanted}_{count}"
            self.taken.add(found)
            found = self.names[value] = f"%{found}"
        return found

    def listed(self, values: list[Value]) -> str:
        return ", ".join(map(self.name, values))

    def typed(self, values: list[Value]) -> str:
        return f"{self.listed(values)} : {types(values)}"

    def function(self, func: Func) -> list[str]:
        arguments = ", ".join(f"{self.name(v)}: {v.type}" for v in func.region.arguments)
        results = f" -> ({', '.join(map(str, func.results))})" if func.results else ""
        attributes = f" attributes {dictionary(func.attributes)}" if func.attributes else ""
        head = f"  func.func @{func.name}({arguments}){results}{attributes} {{"
        return [head, *self.ops(func.region, "    "), "  }"]

    def ops(self, region: Region, indent: str) -> list[str]:
        lines: list[str] = []
        for op in region.ops:
            lines += self.op(op, indent)
        return lines

    def op(self, op: Op, indent: str) -> list[str]:
        text = self.generic_op(op, indent) if self.generic else _FORMS[OPERATIONS[op.name].form](self, op, indent)
        head = f"{self.listed(op.results)} = " if op.results else ""
        lines = text.split("\n")
        return [f"{indent}{head}{lines[0]}", *lines[1:]]

    def body(self, region: Region, indent: str, arguments: bool = True) -> str:
        """`{`, the block and `}`."""
        head = []
        if region.arguments and arguments:
            given = ", ".join(f"{self.name(v)}: {v.type}" for v in region.arguments)
            head = [f"{indent}^bb0({given}):"]
        return "\n".join(["{", *head, *self.ops(region, indent + "  "), indent + "}"])

    def generic_op(self, op: Op, indent: str) -> str:
        attributes = dict(op.attributes)
        if OPERATIONS[op.name].form == "structured":
            inputs = attributes.pop("inputs")
            attributes["operandSegmentSizes"] = Numbers("i32", (inputs, len(op.operands) - inputs))
        known = {"arith.cmpi": INTEGER_PREDICATES, "arith.cmpf": FLOAT_PREDICATES}.get(op.name)
        if known:
            attributes["predicate"] = known.index(attributes["predicate"])
        attributes = {k: _plain(v) for k, v in attributes.items()}
        properties = f" <{dictionary(attributes)}>" if attributes else ""
        regions = ", ".join(self.body(region, indent) for region in op.regions)
        body = f" ({regions})" if regions else ""
        of = f"({types(op.operands)}) -> ({types(op.results)})"
        return f'"{op.name}"({self.listed(op.operands)}){properties}{body} : {of}'


def _plain(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return IntegerAttribute(value, Scalar("i64"))
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def types(values: list[Value]) -> str:
    return ", ".join(str(v.type) for v in values)


def _rest(op: Op, *known: str) -> str:
    """Attributes that the form has no place for."""
    left = {k: _plain(v) for k, v in op.attributes.items() if k not in known}
    return f" {dictionary(left)}" if left else ""


def _elementwise(p: _Printer, op: Op, _: str) -> str:
    source = op.operands[-1].type
    of = types(op.operands[:1]) + f", {source}" if op.name == "arith.select" else str(source)
    if op.name.startswith("spyreop.") and any(v.type != source for v in op.operands):
        of = types(op.operands)
    arrow = f" -> {op.results[0].type}" if op.results[0].type != source else ""
    return f"{op.name} {p.listed(op.operands)}{_rest(op)} : {of}{arrow}"


def _compare(p: _Printer, op: Op, _: str) -> str:
    values = f"{op.attributes['predicate']}, {p.listed(op.operands)}"
    return f"{op.name} {values}{_rest(op, 'predicate')} : {op.operands[0].type}"


def _cast(p: _Printer, op: Op, _: str) -> str:
    return f"{op.name} {p.listed(op.operands)}{_rest(op)} : {op.operands[0].type} to {op.results[0].type}"


def _structured(p: _Printer, op: Op, indent: str) -> str:
    inputs = op.attributes["inputs"]
    early: dict[str, Any] = {k: op.attributes[k] for k in ("indexing_maps", "iterator_types") if k in op.attributes}
    late: dict[str, Any] = {k: op.attributes[k] for k in ("dimensions", "permutation") if k in op.attributes}
    text = op.name
    if op.name == "linalg.generic":
        text += f" {dictionary(early)}"
    elif early:
        text += "".join(f" {k} = {attribute_text(v)}" for k, v in early.items())
    if inputs:
        text += f" ins({p.typed(op.operands[:inputs])})"
    text += f" outs({p.typed(op.operands[inputs:])})"
    text += "".join(f" {k} = {v}" for k, v in late.items())
    rest = _rest(op, "inputs", *early, *late)
    text += f" attrs ={rest}" if rest else ""
    if op.regions:
        text += f" {p.body(op.regions[0], indent)}"
    return f"{text} -> {types(op.results)}" if op.results else text


def _own(p: _Printer, op: Op, indent: str) -> str:
    return _OWN.get(op.name, _yield)(p, op, indent)


def _yield(p: _Printer, op: Op, _: str) -> str:
    name = "return" if op.name == "func.return" else op.name
    return f"{name} {p.typed(op.operands)}" if op.operands else name


def _constant(p: _Printer, op: Op, _: str) -> str:
    value = op.attributes["value"]
    if isinstance(value, IntegerAttribute | Float):
        return f"arith.constant {value}"
    return f"arith.constant {attribute_text(value)}"


def _index(p: _Printer, op: Op, _: str) -> str:
    dim = op.attributes["dim"]
    return f"linalg.index {dim} : index"


def _empty(p: _Printer, op: Op, _: str) -> str:
    return f"tensor.empty({p.listed(op.operands)}) : {op.results[0].type}"


def _splat(p: _Printer, op: Op, _: str) -> str:
    sizes = f"[{p.listed(op.operands[1:])}]" if len(op.operands) > 1 else ""
    return f"tensor.splat {p.name(op.operands[0])}{sizes} : {op.results[0].type}"


def _extract(p: _Printer, op: Op, _: str) -> str:
    return f"tensor.extract {p.name(op.operands[0])}[{p.listed(op.operands[1:])}] : {op.operands[0].type}"


def _numbers(p: _Printer, numbers: Numbers, operands: list[Value]) -> str:
    """Takes operands from the front of the list for the numbers that are not known."""
    return f"[{', '.join(p.name(operands.pop(0)) if n == DYNAMIC_NUMBER else str(n) for n in numbers.values)}]"


def _slice(p: _Printer, op: Op, _: str) -> str:
    inserts = op.name == "tensor.insert_slice"
    rest = op.operands[2 if inserts else 1 :]
    into = f" into {p.name(op.operands[1])}" if inserts else ""
    keys = ("static_offsets", "static_sizes", "static_strides")
    box = "".join(_numbers(p, op.attributes[key], rest) for key in keys)
    arrow = "into" if inserts else "to"
    return f"{op.name} {p.name(op.operands[0])}{into}{box} : {op.operands[0].type} {arrow} {op.results[0].type}"


def _reassociate(p: _Printer, op: Op, _: str) -> str:
    groups = op.attributes["reassociation"]
    shape = op.attributes.get("static_output_shape")
    output = f" output_shape {_numbers(p, shape, op.operands[1:])}" if shape is not None else ""
    return f"{op.name} {p.name(op.operands[0])} {groups}{output} : {op.operands[0].type} into {op.results[0].type}"


def _generate(p: _Printer, op: Op, indent: str) -> str:
    sizes = f" {p.listed(op.operands)}" if op.operands else ""
    return f"tensor.generate{sizes} {p.body(op.regions[0], indent)} : {op.results[0].type}"


def _from_elements(p: _Printer, op: Op, _: str) -> str:
    return f"tensor.from_elements {p.listed(op.operands)} : {op.results[0].type}"


def _dim(p: _Printer, op: Op, _: str) -> str:
    return f"tensor.dim {p.listed(op.operands)} : {op.operands[0].type}"


def _for(p: _Printer, op: Op, indent: str) -> str:
    region = op.regions[0]
    low, high, step = map(p.name, op.operands[:3])
    text = f"scf.for {p.name(region.arguments[0])} = {low} to {high} step {step}"
    if op.operands[3:]:
        pairs = zip(region.arguments[1:], op.operands[3:], strict=True)
        carried = ", ".join(f"{p.name(a)} = {p.name(v)}" for a, v in pairs)
        text += f" iter_args({carried}) -> ({types(op.results)})"
    of = region.arguments[0].type
    text += f" : {of}" if str(of) != "index" else ""
    return f"{text} {p.body(region, indent, arguments=False)}"


def _if(p: _Printer, op: Op, indent: str) -> str:
    text = f"scf.if {p.name(op.operands[0])}"
    text += f" -> ({types(op.results)})" if op.results else ""
    text += f" {p.body(op.regions[0], indent)}"
    if len(op.regions) > 1 and (op.results or len(op.regions[1].ops) > 1):
        text += f" else {p.body(op.regions[1], indent)}"
    return text


def _call(p: _Printer, op: Op, _: str) -> str:
    arrow = f"({types(op.operands)}) -> ({types(op.results)})"
    return f"func.call @{op.attributes['callee']}({p.listed(op.operands)}) : {arrow}"


def _tile_id(p: _Printer, op: Op, _: str) -> str:
    return f"ktdp.get_compute_tile_id : {types(op.results)}"


def _view(p: _Printer, op: Op, _: str) -> str:
    rest, text = op.operands[1:], f"{op.name} {p.name(op.operands[0])}"
    for key, word in (("static_sizes", "sizes"), ("static_strides", "strides")):
        if key in op.attributes:
            text += f", {word}: {_numbers(p, op.attributes[key], rest)}"
    return f"{text}{_rest(op, 'static_sizes', 'static_strides')} : {op.results[0].type}"


def _distributed(p: _Printer, op: Op, _: str) -> str:
    return f"{op.name}({p.typed(op.operands)}){_rest(op)} : {op.results[0].type}"


def _access(p: _Printer, op: Op, _: str) -> str:
    count = op.attributes.get("indices", len(op.operands) - 1)
    symbols = op.operands[1 + count :]
    text = f"{op.name} {p.name(op.operands[0])}[{p.listed(op.operands[1 : 1 + count])}]"
    text += f"[{p.listed(symbols)}]" if symbols else ""
    return f"{text}{_rest(op, 'indices')} : {op.operands[0].type} -> {op.results[0].type}"


def _indirect(p: _Printer, op: Op, _: str) -> str:
    of = op.results[0].type
    variables = [f"%v{i}" for i in range(len(getattr(of, "shape", ())))]
    views = [v for v in op.operands[1:] if isinstance(v.type, MemRef)]
    scalars = op.operands[1 + len(views) :]
    while any(v[1:] in p.taken for v in variables):
        variables = [f"{v}_" for v in variables]

    def expression(e: Expression) -> str:
        return _named(e, variables, [p.name(v) for v in scalars])

    subscripts = []
    for each, index in zip(op.attributes["subscripts"], op.attributes["index_views"].values, strict=True):
        inner = ", ".join(map(expression, each.results))
        subscripts.append(f"({inner})" if index < 0 else f"ind({p.name(op.operands[index])}[{inner}])")
    known = types(op.operands[: 1 + len(views)])
    text = f"{op.name} intermediate_variables({', '.join(variables)}) {p.name(op.operands[0])}[{', '.join(subscripts)}]"
    return f"{text}{_rest(op, 'subscripts', 'index_views')} : {known} -> {of}"


def _named(e: Expression, dims: list[str], symbols: list[str]) -> str:
    if e[0] in "ds":
        return dims[e[1]] if e[0] == "d" else symbols[e[1]]
    if e[0] == "c":
        return text_of(e)
    left, right = (_named(each, dims, symbols) for each in e[1:])
    return f"({left} {e[0]} {right})"


def _load(p: _Printer, op: Op, _: str) -> str:
    return f"ktdp.load {p.listed(op.operands)} : {op.operands[0].type} -> {op.results[0].type}"


def _store(p: _Printer, op: Op, _: str) -> str:
    return f"ktdp.store {p.typed(op.operands)}"


def _runtime_argument(p: _Printer, op: Op, _: str) -> str:
    source = op.operands[0]
    return (
        f"{op.name} {', '.join(op.attributes['fields'])} from {p.name(source)} : {source.type} -> {types(op.results)}"
    )


def _produce(p: _Printer, op: Op, indent: str) -> str:
    of = op.results[0].type
    assert isinstance(of, Future)
    tiles = op.attributes["producer_tiles_per_group"]
    text = f"{op.name} producer_tiles_per_group = {tiles} : {of.element} -> {of}"
    return f"{text} {p.body(op.regions[0], indent)}"


def _receive(p: _Printer, op: Op, indent: str) -> str:
    tiles = op.attributes["consumer_tiles_per_group"]
    text = f"{op.name}({p.name(op.operands[0])}) consumer_tiles_per_group = {tiles}"
    if len(op.operands) > 1:
        text += f", identity({p.typed(op.operands[1:])})"
    text += f" : {op.operands[0].type} -> {op.results[0].type}"
    return f"{text} {p.body(op.regions[0], indent)}" if op.regions else text


_Form = Callable[[_Printer, Op, str], str]
_FORMS: dict[str, _Form] = {
    "elementwise": _elementwise,
    "compare": _compare,
    "cast": _cast,
    "structured": _structured,
    "own": _own,
}
_OWN: dict[str, _Form] = {
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
    "ktdp.construct_memory_view": _view,
    "ktdp.construct_distributed_memory_view": _distributed,
    "ktdp.construct_access_tile": _access,
    "ktdp.construct_indirect_access_tile": _indirect,
    "ktdp.load": _load,
    "ktdp.store": _store,
    "ktdp.runtime_arg_extract": _runtime_argument,
    "ktdp.inter_tile_produce": _produce,
    "ktdp.inter_tile_reduce": _receive,
    "ktdp.inter_tile_consume": _receive,
}
