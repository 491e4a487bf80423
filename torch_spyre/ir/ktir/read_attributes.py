"""Reads types, affine maps and sets, and attributes."""

from __future__ import annotations

import re
import struct
from typing import Any

from .affine import AffineMap, Expression, IntegerSet
from .attributes import Dense, Float, Integer, Numbers, Opaque, Symbol, Unit
from .lexer import Cursor
from .types import (
    DYNAMIC,
    MOST_RANK,
    SCALARS,
    AccessTile,
    Function,
    Future,
    MemRef,
    RuntimeArgument,
    Scalar,
    Tensor,
    Type,
)

_SCALARS: dict[str, Scalar] = {name: Scalar(name) for name in SCALARS}
_SHAPED = re.compile(r"<\s*((?:(?:\d+|\?)\s*x\s*)*)([a-z]\w*)\s*")
_MOST_SIZE = 1 << 40
_MOST_CONSTANT = 1 << 22  # elements that a dense constant lists


class AttributeReader(Cursor):
    """A cursor that knows the aliases at the top of the file."""

    def __init__(self, *arguments: Any) -> None:
        self.aliases: dict[str, Any] = {}
        self._types: dict[str, Type] = {}
        super().__init__(*arguments)

    # Types

    def type(self) -> Type:
        if self.kind == "name":
            if self.token in _SCALARS:
                return _SCALARS[self.advance()]
            if self.token in ("tensor", "memref"):
                return self._shaped(self.token)
        if self.kind == "dialect_type":
            return self._dialect_type()
        if self.at("("):
            return self.function_type()
        raise self.expected("a type")

    def types(self) -> list[Type]:
        found = [self.type()]
        while self.accept(","):
            found.append(self.type())
        return found

    def function_type(self) -> Function:
        self.nest()
        self.expect("(")
        inputs = [] if self.at(")") else self.types()
        self.expect(")")
        self.expect("->")
        results = self.result_types()
        self.leave()
        return Function(tuple(inputs), tuple(results))

    def result_types(self) -> list[Type]:
        """One type, or several in parentheses."""
        if not self.accept("("):
            return [self.type()]
        found = [] if self.at(")") else self.types()
        self.expect(")")
        return found

    def _shaped(self, what: str) -> Type:
        begin = self.start
        match = _SHAPED.match(self.text, self.after)
        if match is None or match[2] not in _SCALARS:
            raise self.error(f"{what} needs sizes and an element type, as in {what}<4x64xf16>")
        shape = tuple(DYNAMIC if n.strip() == "?" else int(n[:20]) for n in match[1].split("x")[:-1])
        if len(shape) > MOST_RANK or any(n > _MOST_SIZE for n in shape):
            raise self.error(f"a {what} of more than {MOST_RANK} dimensions, or larger than any memory")
        element = _SCALARS[match[2]]
        if what == "tensor":
            self.read(match.end())
            if self.accept(","):  # an encoding says nothing here
                while not self.at(">"):
                    self.advance() if not self.at("<") else self.balanced()
                    if self.kind == "end":
                        raise self.error("'<' is not closed", begin)
            self.expect(">")
            return Tensor(shape, element)
        rest_begin = match.end()
        self.read(rest_begin)
        if self.accept(">"):
            return MemRef(shape, element)
        while not self.at(">"):
            if self.kind == "end":
                raise self.error("'<' is not closed", begin)
            if self.at("<"):
                self.balanced()
            else:
                self.advance()
        rest = self.text[rest_begin : self.start].strip()
        self.expect(">")
        return MemRef(shape, element, rest)

    def _dialect_type(self) -> Type:
        begin, name = self.start, self.token
        if name in self.aliases:
            self.advance()
            return self.aliases[name]
        if name == "!ktdp.access_tile":
            match = _SHAPED.match(self.text, self.after)
            if match is None or match[2] != "index":
                raise self.error("an access tile needs sizes, as in !ktdp.access_tile<4x64xindex>")
            shape = tuple(DYNAMIC if n.strip() == "?" else int(n[:20]) for n in match[1].split("x")[:-1])
            if len(shape) > MOST_RANK or any(n > _MOST_SIZE for n in shape):
                raise self.error(f"an access tile of more than {MOST_RANK} dimensions, or larger than any memory")
            self.read(match.end())
            self.expect(">")
            return AccessTile(shape)
        if name == "!ktdp.tile_future":
            self.advance()
            return self.future_body()
        if name == "!ktdp.runtime_arg":
            self.advance()
            self.expect("<")
            element, given = self.type(), {"granularity": 1, "upperbound": DYNAMIC}
            if not isinstance(element, Scalar):
                raise self.error("a runtime argument is a scalar", begin)
            while self.accept(","):
                key = self.name("granularity or upperbound")
                if key not in given:
                    raise self.error(f"a runtime argument has no {key}")
                self.expect("=")
                given[key] = self.integer()
                if self.accept(":"):
                    self.type()
            self.expect(">")
            return RuntimeArgument(element, given["granularity"], given["upperbound"])
        raise self.error(f"unknown type {name}")

    def future_body(self) -> Future:
        """What is in the brackets of a future's type."""
        self.expect("<")
        many = self.accept("(")
        element = self.type()
        if many:
            self.expect(")")
        groups = None
        if self.accept(","):
            self.expect("groups")
            self.expect("=")
            groups = self.integer_set()
        self.expect(">")
        return Future(element, groups)

    # Affine

    def affine_map(self) -> AffineMap:
        begin = self.start
        found = self.attribute()
        if not isinstance(found, AffineMap):
            raise self.error("expected an affine map", begin)
        return found

    def integer_set(self) -> IntegerSet:
        begin = self.start
        found = self.attribute()
        if not isinstance(found, IntegerSet):
            raise self.error("expected an affine set", begin)
        return found

    def _affine_head(self) -> dict[str, Expression]:
        names: dict[str, Expression] = {}
        for open_, close, kind in (("(", ")", "d"), ("[", "]", "s")):
            if kind == "d":
                self.expect(open_)
            elif not self.accept(open_):
                continue
            count = 0
            while not self.accept(close):
                if count:
                    self.expect(",")
                name = self.name("the name of a dimension")
                if name in names:
                    raise self.error(f"{name} is given twice")
                names[name] = (kind, count)
                count += 1
                if count > 32:
                    raise self.error("more than 32 dimensions or symbols")
        return names

    def _affine_map(self) -> AffineMap:
        self.expect("<")
        names = self._affine_head()
        self.expect("->")
        self.expect("(")
        results: list[Expression] = []
        while not self.accept(")"):
            if results:
                self.expect(",")
            results.append(self.expression(names))
        self.expect(">")
        counts = [sum(e[0] == kind for e in names.values()) for kind in "ds"]
        return AffineMap(counts[0], counts[1], tuple(results))

    def _integer_set(self) -> IntegerSet:
        self.expect("<")
        names = self._affine_head()
        self.expect(":")
        self.expect("(")
        rows: list[Expression] = []
        equal: list[bool] = []
        while not self.accept(")"):
            if rows:
                self.expect(",")
            left = self.expression(names)
            if self.token not in (">=", "<=", "=="):
                raise self.expected("'>=', '<=' or '=='")
            operator = self.advance()
            right = self.expression(names)
            if operator == "<=":
                left, right = right, left
            rows.append(left if right == ("c", 0) else folded(("+", left, negative(right))))
            equal.append(operator == "==")
        self.expect(">")
        counts = [sum(e[0] == kind for e in names.values()) for kind in "ds"]
        return IntegerSet(counts[0], counts[1], tuple(rows), tuple(equal))

    def expression(self, names: dict[str, Expression]) -> Expression:
        self.nest()
        left = self._product(names)
        while self.token in ("+", "-") and self.kind == "punct":
            minus = self.advance() == "-"
            right = self._product(names)
            left = folded(("+", left, negative(right) if minus else right))
        self.leave()
        return left

    def _product(self, names: dict[str, Expression]) -> Expression:
        left = self._factor(names)
        while self.token in ("*", "floordiv", "ceildiv", "mod") and self.kind in ("punct", "name"):
            begin, operation = self.start, self.advance()
            right = self._factor(names)
            if operation == "*" and left[0] == "c":
                left, right = right, left
            if operation == "*" and "d" in kinds(right):
                raise self.error("a product of two dimensions is not affine", begin)
            if operation != "*" and right[0] == "c" and right[1] <= 0:
                raise self.error(f"{operation} by {right[1]}", begin)
            left = folded((operation, left, right))
        return left

    def _factor(self, names: dict[str, Expression]) -> Expression:
        if self.accept("-"):
            self.nest()
            inner = negative(self._factor(names))
            self.leave()
            return inner
        if self.accept("("):
            inner = self.expression(names)
            self.expect(")")
            return inner
        if self.kind == "number":
            return ("c", self.integer())
        if self.kind in ("name", "value"):
            if self.token not in names:
                raise self.error(f"unknown dimension or symbol {self.token}")
            return names[self.advance()]
        raise self.expected("an affine expression")

    # Attributes

    def attribute(self) -> Any:
        self.nest()
        found = self._attribute()
        self.leave()
        return found

    def _attribute(self) -> Any:
        match self.kind:
            case "string":
                return unquoted(self.advance())
            case "symbol":
                return Symbol(self.advance()[1:].strip('"'))
            case "number":
                return self._number(self.start)
            case "alias":
                return self._dialect_attribute()
            case "dialect_type":
                return self.type()
        if self.at("-"):
            return self._number(self.start)
        if self.accept("["):
            items: list[Any] = []
            while not self.accept("]"):
                if items:
                    self.expect(",")
                items.append(self.attribute())
            return items
        if self.at("{"):
            return self.dictionary()
        match self.token:
            case "true" | "false":
                value = self.advance() == "true"
                if self.accept(":"):
                    self.type()
                return value
            case "unit":
                self.advance()
                return Unit()
            case "affine_map":
                self.advance()
                return self._affine_map()
            case "affine_set":
                self.advance()
                return self._integer_set()
            case "dense":
                return self._dense()
            case "array":
                return self._numbers()
        return self.type()

    def dictionary(self) -> dict[str, Any]:
        self.expect("{")
        found: dict[str, Any] = {}
        while not self.accept("}"):
            if found:
                self.expect(",")
            begin = self.start
            key = unquoted(self.advance()) if self.kind == "string" else self.name("the name of an attribute")
            if key in found:
                raise self.error(f"attribute {key} is given twice", begin)
            found[key] = self.attribute() if self.accept("=") else Unit()
        return found

    def _number(self, begin: int) -> Any:
        negative_ = self.accept("-")
        text = self.take("number", "a number")
        of: Type | None = self.type() if self.accept(":") else None
        if isinstance(of, Scalar) and of.is_float:
            value = from_bits(text, of) if text.startswith("0x") else float(text)
            return Float(-value if negative_ else value, of)
        if any(c in text for c in ".eE") and not text.startswith("0x"):
            if of is not None:
                raise self.error(f"{text} is no {of}", begin)
            return Float(-float(text) if negative_ else float(text), _SCALARS["f32"])
        value = int(text, 0) if text.startswith("0x") else int(text[:40])
        if value >= 1 << 64:
            raise self.error("a number of more than 64 bits", begin)
        return Integer(-value if negative_ else value, of or _SCALARS["i64"])

    def _dialect_attribute(self) -> Any:
        begin, name = self.start, self.advance()
        if name in self.aliases:
            return self.aliases[name]
        if not self.at("<"):
            if "." in name:
                return Opaque(name)
            raise self.error(f"unknown alias {name}", begin)
        return Opaque(name + self.balanced())

    def _numbers(self) -> Numbers:
        self.advance()
        self.expect("<")
        of = self.name("a type")
        values: list[int] = []
        if self.accept(":"):
            while not self.at(">"):
                if values:
                    self.expect(",")
                truth = self.token in ("true", "false")
                values.append(int(self.advance() == "true") if truth else self.integer())
        self.expect(">")
        return Numbers(of, tuple(values))

    def _dense(self) -> Dense:
        begin = self.start
        self.advance()
        self.expect("<")
        texts: list[str] = []
        shape = self._dense_body(texts, begin)
        self.expect(">")
        self.expect(":")
        of = self.type()
        if not isinstance(of, Tensor) or not of.static:
            raise self.error("a dense constant is a tensor with known sizes", begin)
        count = 1
        for n in of.shape:
            count *= n
        if count > _MOST_SIZE:
            raise self.error("a constant that is larger than any memory", begin)
        if len(texts) == 1 and texts[0].startswith('"'):
            return Dense(self._packed(texts[0], of, count, begin), of)
        if len(texts) not in (1, count) or (shape and shape != of.shape):
            raise self.error(f"{len(texts)} values for {of}", begin)
        return Dense(tuple(self._element(text, of.element, begin) for text in texts), of)

    def _dense_body(self, texts: list[str], begin: int) -> tuple[int, ...]:
        """The values, and the shape that their brackets have."""
        self.nest()
        if self.accept("["):
            inner: tuple[int, ...] | None = None
            count = 0
            while not self.accept("]"):
                if count:
                    self.expect(",")
                shape = self._dense_body(texts, begin)
                if inner is not None and inner != shape:
                    raise self.error("rows of different length", begin)
                inner, count = shape, count + 1
            self.leave()
            return (count, *(inner or ()))
        self.leave()
        if len(texts) >= _MOST_CONSTANT:
            raise self.error(f"a constant of more than {_MOST_CONSTANT} listed values", begin)
        sign = "-" if self.accept("-") else ""
        if self.kind not in ("number", "string") and self.token not in ("true", "false"):
            raise self.expected("a number")
        texts.append(sign + self.advance())
        return ()

    def _element(self, text: str, of: Scalar, begin: int) -> float | int:
        try:
            if text in ("true", "false"):
                return int(text == "true")
            if not of.is_float:
                return int(text, 0)
            if "0x" in text:
                return from_bits(text.lstrip("-"), of) * (-1 if text.startswith("-") else 1)
            return float(text)
        except ValueError:
            raise self.error(f"{text} is no {of}", begin) from None

    def _packed(self, text: str, of: Tensor, count: int, begin: int) -> tuple[float, ...]:
        """Elements as hexadecimal digits of their bytes."""
        from .types import BYTES

        try:
            data = bytes.fromhex(text.strip('"').removeprefix("0x"))
        except ValueError:
            raise self.error("a dense constant in a string has hexadecimal digits", begin) from None
        size = BYTES[of.element.name]
        if len(data) not in (size, size * count):
            raise self.error(f"{len(data)} bytes for {of}", begin)
        if of.element.name == "bf16":
            words = struct.unpack(f"<{len(data) // 2}H", data)
            return tuple(from_bits(hex(word), of.element) for word in words)
        code = {"f16": "e", "f32": "f", "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "index": "q"}
        return struct.unpack(f"<{len(data) // size}{code[of.element.name]}", data)


def from_bits(text: str, of: Scalar) -> float:
    bits = int(text, 16)
    if of.name == "f16":
        return float(struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0])
    if of.name == "bf16":
        bits = (bits & 0xFFFF) << 16
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0])


def plain_numbers(given: Any) -> Any:
    """Numbers without types, in lists of any depth."""
    if isinstance(given, Numbers):
        return list(given.values)
    if isinstance(given, list):
        return [plain_numbers(each) for each in given]
    return given.value if isinstance(given, Integer) else given


def unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def kinds(e: Expression) -> set[str]:
    return {e[0]} if e[0] in "cds" else kinds(e[1]) | kinds(e[2])


def negative(e: Expression) -> Expression:
    if e[0] == "c":
        return ("c", -e[1])
    if e[0] == "*" and e[2] == ("c", -1):
        return e[1]
    return ("*", e, ("c", -1))


def folded(e: Expression) -> Expression:
    """With constants computed, and without what adds nothing."""
    operation, left, right = e
    if left[0] == right[0] == "c":
        a, b = left[1], right[1]
        if operation in ("floordiv", "ceildiv", "mod") and b <= 0:
            return e
        done = {
            "+": lambda: a + b,
            "*": lambda: a * b,
            "floordiv": lambda: a // b,
            "ceildiv": lambda: -(-a // b),
            "mod": lambda: a % b,
        }
        return ("c", done[operation]())
    if operation == "+" and right == ("c", 0):
        return left
    if operation == "+" and left == ("c", 0):
        return right
    if operation == "*" and right == ("c", 1):
        return left
    return e
