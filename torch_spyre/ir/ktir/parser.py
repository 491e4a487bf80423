"""Text to a module: scopes of values, ops in generic and in pretty form, functions."""

from __future__ import annotations

from typing import Any

from .attributes import Numbers, Opaque, Symbol
from .model import Func, Module, Op, Region, Value
from .operations import FLOAT_PREDICATES, INTEGER_PREDICATES, OPERATIONS, SHORT_NAMES, TERMINATORS
from .read_attributes import AttributeReader, plain_numbers, unquoted
from .source import MOST_TEXT, KtirError, Source
from .types import Type

MOST_OPS = 1 << 20


def parse(text: str, name: str = "") -> Module:
    """Raises KtirError, with line and column."""
    source = Source(text, name)
    if len(text) > MOST_TEXT:
        raise KtirError(f"a program of more than {MOST_TEXT} characters", 1, 1, name)
    return Parser(source).module()


class Parser(AttributeReader):
    def __init__(self, source: Source) -> None:
        self.values: dict[str, Value] = {}
        self.ops = 0
        super().__init__(source)

    # Modules and functions

    def module(self) -> Module:
        module = Module(source=self.source)
        self._items(module, "end")
        if self.kind != "end":
            raise self.expected("a function or a module")
        if not module.functions:
            raise self.error("there is no function")
        return module

    def _items(self, module: Module, until: str) -> None:
        while self.kind != "end" and not self.at(until):
            if self.kind in ("alias", "dialect_type"):
                self._alias()
            elif self.accept("module") or self.accept("builtin.module"):
                if self.kind == "symbol":
                    self.advance()
                if self.accept("attributes"):
                    module.attributes |= self.dictionary()
                self.expect("{")
                self.nest()
                self._items(module, "}")
                self.leave()
                self.expect("}")
                self.location()
            elif self.accept("func.func") or self.accept("func"):
                self._function(module)
            elif self.kind == "string" and self.token in ('"builtin.module"', '"func.func"'):
                self._generic_item(module)
            else:
                raise self.expected("a function or a module")

    def _alias(self) -> None:
        begin, kind, name = self.start, self.kind, self.advance()
        self.expect("=")
        if name in self.aliases:
            raise self.error(f"{name} is defined twice", begin)
        if self.at("loc"):
            self.location()
            self.aliases[name] = Opaque(name)
        else:
            self.aliases[name] = self.type() if kind == "dialect_type" else self.attribute()

    def _function(self, module: Module) -> None:
        if self.token in ("private", "public", "nested"):
            self.advance()
        begin = self.start
        name = self.take("symbol", "the name of a function")[1:].strip('"')
        self.values = {}
        region = Region()
        self.expect("(")
        while not self.accept(")"):
            if region.arguments:
                self.expect(",")
            at, given = self.start, self.take("value", "an argument")
            self.expect(":")
            region.arguments.append(self.define(given, self.type(), None, at))
            if self.at("{"):
                self.dictionary()
            self.location()
        results: list[Type] = []
        if self.accept("->"):
            results = self.result_types()
        attributes: dict[str, Any] = {}
        if self.accept("attributes") or (self.at("{") and self.is_dictionary()):
            attributes = self.dictionary()
        self.body(region, ends=True)
        self.location()
        self._add(module, Func(name, region, results, attributes, begin), begin)

    def is_dictionary(self) -> bool:
        """Whether the brace opens attributes: `{name = ...`, where an op would be `%x = ...` or `dialect.op ...`."""
        rest = self.text[self.after : self.after + 400].lstrip()
        head = rest.split("=", 1)[0].strip()
        return rest.startswith("}") or ("=" in rest and head.replace(".", "").isidentifier())

    def _add(self, module: Module, func: Func, begin: int) -> None:
        if func.name in module.functions:
            raise self.error(f"function @{func.name} is defined twice", begin)
        module.functions[func.name] = func

    def _generic_item(self, module: Module) -> None:
        """Reads "builtin.module"() ({...}) and "func.func"() <{...}> ({...})"""
        begin, name = self.start, unquoted(self.advance())
        self.expect("(")
        self.expect(")")
        attributes = self._properties()
        self.expect("(")
        self.nest()
        if name == "builtin.module":
            self.expect("{")
            if self.kind == "block":
                self.advance()
                self.expect(":")
            self._items(module, "}")
            self.expect("}")
        else:
            self.values = {}
            region = Region()
            self.body(region, ends=True)
        self.leave()
        self.expect(")")
        if self.at("{"):
            attributes |= self.dictionary()
        self.expect(":")
        self.type()
        self.location()
        if name == "builtin.module":
            module.attributes |= attributes
            return
        symbol, of = attributes.pop("sym_name", ""), attributes.pop("function_type", None)
        attributes.pop("sym_visibility", None)
        if not isinstance(symbol, str) or not symbol:
            raise self.error("a function has no sym_name", begin)
        self._add(module, Func(symbol, region, list(getattr(of, "results", ())), attributes, begin), begin)

    # Values

    def define(self, name: str, of: Type, op: Op | None, position: int) -> Value:
        if name in self.values:
            raise self.error(f"{name} is defined twice", position)
        value = Value(of, name[1:], op)
        self.values[name] = value
        return value

    def operand(self) -> Value:
        at, name = self.start, self.take("value", "a value")
        found = self.values.get(name) or self.values.get(f"{name}#0")
        if found is None:
            raise self.error(f"unknown value {name}", at)
        return found

    def operands(self, close: str = "") -> list[Value]:
        """Separated by commas; none before ``close``."""
        if close and self.at(close):
            return []
        found = [self.operand()]
        while self.accept(","):
            found.append(self.operand())
        return found

    # Regions

    def body(self, region: Region, ends: bool = False, arguments: list[tuple[str, Type, int]] | None = None) -> None:
        """`{ ... }`, whose values nobody sees outside. ``ends``: the last op ends the block."""
        self.nest()
        self.expect("{")
        before = self.values
        self.values = dict(before)
        for name, of, at in arguments or []:
            region.arguments.append(self.define(name, of, None, at))
        if self.kind == "block":
            self.block_arguments(region)
        while not self.at("}"):
            if self.kind == "end":
                raise self.expected("'}'")
            if self.kind == "block":
                raise self.error("a region has one block")
            if region.ops and region.ops[-1].name in TERMINATORS:
                raise self.error(f"{region.ops[-1].name} ends its block")
            region.ops.append(self.op())
        end = self.start
        self.expect("}")
        if ends and (not region.ops or region.ops[-1].name not in TERMINATORS):
            raise self.error("the block does not end with a return or a yield", end)
        self.values = before
        self.leave()

    def block_arguments(self, region: Region) -> None:
        self.advance()
        if self.accept("("):
            while not self.accept(")"):
                if region.arguments:
                    self.expect(",")
                at, name = self.start, self.take("value", "a block's argument")
                self.expect(":")
                region.arguments.append(self.define(name, self.type(), None, at))
                self.location()
        self.expect(":")

    def location(self) -> None:
        """`loc(...)` says where another compiler's program comes from."""
        if self.accept("loc"):
            self.balanced("(", ")")

    # Ops

    def op(self) -> Op:
        names: list[tuple[str, int, int]] = []  # name, how many results, position
        if self.kind == "value":
            while True:
                at, name = self.start, self.take("value", "a result")
                count = self.integer() if self.accept(":") else 1
                if not 1 <= count <= 64:
                    raise self.error("an op has at most 64 results", at)
                names.append((name, count, at))
                if not self.accept(","):
                    break
            self.expect("=")
        begin = self.start
        self.ops += 1
        if self.ops > MOST_OPS:
            raise self.error(f"more than {MOST_OPS} ops")
        if self.kind == "string":
            op = self._generic()
        else:
            if self.kind != "name":
                raise self.expected("an operation")
            name = SHORT_NAMES.get(self.token, self.token)
            if name not in OPERATIONS:
                raise self.error(f"unknown operation {name}")
            self.advance()
            op = Op(name, position=begin)
            read_forms.READERS[name](self, op)
        op.position = begin
        self.location()
        expected = sum(count for _, count, _ in names)
        if expected != len(op.results):
            raise self.error(f"{op.name} has {len(op.results)} results, not {expected}", begin)
        results = iter(op.results)
        for name, count, at in names:
            for i in range(count):
                full = name if count == 1 else f"{name}#{i}"
                if full in self.values:
                    raise self.error(f"{name} is defined twice", at)
                value = next(results)
                value.name = full[1:]
                self.values[full] = value
        return op

    def _properties(self) -> dict[str, Any]:
        """`<{...}>` of the generic form."""
        if not self.accept("<"):
            return {}
        found = self.dictionary()
        self.expect(">")
        return found

    def _generic(self) -> Op:
        begin = self.start
        name = unquoted(self.advance())
        if name not in OPERATIONS:
            raise self.error(f"unknown operation {name}", begin)
        op = Op(name, position=begin)
        self.expect("(")
        op.operands = self.operands(")")
        self.expect(")")
        attributes = self._properties()
        if self.accept("("):
            while True:
                region = Region()
                self.body(region)
                op.regions.append(region)
                if not self.accept(","):
                    break
            self.expect(")")
        if self.at("{"):
            attributes |= self.dictionary()
        self.expect(":")
        at = self.start
        types = self.function_type()
        given = [value.type for value in op.operands]
        if list(types.inputs) != given:
            raise self.error(f"the operands have the types ({', '.join(map(str, given))})", at)
        for of in types.results:
            op.result(of)
        op.attributes = attributes
        self._as_pretty(op, begin)
        return op

    def _as_pretty(self, op: Op, begin: int) -> None:
        """Attributes as the pretty form has them."""
        attributes = op.attributes
        predicates = {"arith.cmpi": INTEGER_PREDICATES, "arith.cmpf": FLOAT_PREDICATES}.get(op.name)
        if predicates and not isinstance(attributes.get("predicate"), str):
            number = getattr(attributes.get("predicate"), "value", -1)
            if not isinstance(number, int) or not 0 <= number < len(predicates):
                raise self.error(f"{op.name} has no predicate {number}", begin)
            attributes["predicate"] = predicates[number]
        segments = attributes.pop("operandSegmentSizes", None)
        if OPERATIONS[op.name].form == "structured":
            counts = list(segments.values) if isinstance(segments, Numbers) else [len(op.operands) - 1, 1]
            if len(counts) != 2 or min(counts) < 0 or sum(counts) != len(op.operands):
                raise self.error(f"{op.name}: operandSegmentSizes do not fit its operands", begin)
            attributes["inputs"] = counts[0]
            if isinstance(attributes.get("iterator_types"), list):
                attributes["iterator_types"] = [
                    str(each).split("<")[-1].rstrip(">") for each in attributes["iterator_types"]
                ]
            if op.name not in ("linalg.generic", "linalg.reduce", "linalg.map"):
                op.regions = []  # what a named op's body says, its name says
        elif op.name == "ktdp.construct_access_tile" and isinstance(segments, Numbers) and len(segments.values) > 1:
            attributes["indices"] = segments.values[1]
        for key in ("dimensions", "permutation", "indices", "dim", "reassociation"):
            if key in attributes:
                attributes[key] = plain_numbers(attributes[key])
        if op.name == "func.call" and isinstance(attributes.get("callee"), Symbol):
            attributes["callee"] = attributes["callee"].name


from . import read_forms  # noqa: E402  its functions take a Parser
