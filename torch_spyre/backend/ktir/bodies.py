"""What is computed for each element: scalar ops of KTIR as operations between registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from ... import _C
from ...ir.ktir.types import Scalar
from ...ops.table import OPS


@dataclass(frozen=True)
class Row:
    """How an op is computed: by which tile operation, with which constants; whether its result needs no rounding."""

    tile_op: str
    exact: bool = False
    special: bool = False  # a function that takes the vector unit longer
    constants: tuple[float, ...] = ()


def _rows(names: str, **facts: Any) -> dict[str, Row]:
    pairs = (each.split(":") for each in names.split())
    return {name: Row(tile_op, **facts) for name, tile_op in pairs}


_MATH = "exp exp2 expm1 tanh erf log log2 log10 log1p sin cos tan atan sinh cosh"
FLOATS: dict[str, Row] = {
    **_rows("arith.addf:add arith.subf:sub arith.mulf:mul arith.divf:div arith.remf:fmod"),
    **_rows("arith.maximumf:maximum arith.minimumf:minimum arith.maxnumf:fmax arith.minnumf:fmin", exact=True),
    **_rows("arith.negf:neg math.absf:abs math.copysign:copysign", exact=True),
    **{f"math.{name}": Row(name, special=True) for name in _MATH.split()},
    **_rows("math.sqrt:sqrt math.rsqrt:rsqrt math.floor:floor math.ceil:ceil math.roundeven:round math.trunc:trunc"),
    **_rows("math.powf:pow math.atan2:atan2", special=True),
    **_rows("math.fma:fma"),
    **_rows("spyreop.exp:exp spyreop.gelu:gelu_none spyreop.silu:silu spyreop.sigmoid:sigmoid", special=True),
    "spyreop.softplus": Row("softplus", special=True, constants=(1.0, 20.0)),
    **_rows("spyreop.sqrt:sqrt spyreop.rsqrt:rsqrt spyreop.reciprocal:reciprocal spyreop.realdiv:div"),
    **_rows("spyreop.layernormscale:rsqrt"),
}
INTEGERS: dict[str, Row] = {
    **_rows("arith.addi:add arith.subi:sub arith.muli:mul arith.divsi:trunc_divide arith.remsi:fmod"),
    **_rows("arith.floordivsi:floor_divide arith.shli:shift_left arith.shrsi:shift_right math.absi:abs"),
    **_rows("arith.andi:bitwise_and arith.ori:bitwise_or arith.xori:bitwise_xor", exact=True),
    **_rows("arith.maxsi:maximum arith.minsi:minimum", exact=True),
}
TRUTHS: dict[str, Row] = _rows(
    "arith.andi:logical_and arith.ori:logical_or arith.xori:logical_xor arith.addi:logical_xor arith.subi:logical_xor "
    "arith.muli:logical_and arith.maxui:logical_or arith.minui:logical_and arith.minsi:logical_or "
    "arith.maxsi:logical_and",
    exact=True,
)
_UNSIGNED = {"arith.divui": 0, "arith.remui": 1, "arith.shrui": 2, "arith.maxui": 3, "arith.minui": 4}
_BELOW, _NOT_ABOVE, _AS_UNSIGNED = 5, 6, 7
_SIGNED = {"eq": "eq", "ne": "ne", "slt": "lt", "sle": "le", "sgt": "gt", "sge": "ge"}
_ORDERED = {"oeq": "eq", "ogt": "gt", "oge": "ge", "olt": "lt", "ole": "le", "une": "ne"}
_UNORDERED = {"ugt": "ole", "uge": "olt", "ult": "oge", "ule": "ogt", "ueq": "one", "ord": "uno"}

# Ops that fold: the first input is what was folded so far.
COMBINES = {
    **{f"arith.{name}": row for name, row in (("addf", "add"), ("mulf", "mul"), ("addi", "add"), ("muli", "mul"))},
    **{f"arith.{name}": row for name, row in (("maximumf", "maximum"), ("minimumf", "minimum"), ("maxnumf", "fmax"))},
    **{f"arith.{name}": row for name, row in (("minnumf", "fmin"), ("maxsi", "maximum"), ("minsi", "minimum"))},
    **{f"arith.{name}": row for name, row in (("andi", "bitwise_and"), ("ori", "bitwise_or"), ("xori", "bitwise_xor"))},
}


@dataclass
class Body:
    """Registers: inputs first, then constants, positions and results, as they come."""

    half: str  # the format of f16
    types: list[str] = field(default_factory=list)
    inputs: int = 0
    constants: list[tuple[int, float, int]] = field(default_factory=list)
    positions: list[tuple[int, int]] = field(default_factory=list)
    ops: list[dict[str, Any]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)
    plain: int = 0
    special: int = 0
    reads_outputs: bool = True

    def element(self, of: Scalar | str) -> str:
        name = str(of)
        return {"index": "i64", "f16": self.half}.get(name, name)

    def _register(self, of: Scalar | str) -> int:
        self.types.append(self.element(of))
        return len(self.types) - 1

    def input(self, of: Scalar | str) -> int:
        self.inputs += 1
        return self._register(of)

    def constant(self, value: float, of: Scalar | str) -> int:
        at = self._register(of)
        integer = 0 if self.types[at] in ("f16", "sen169", "bf16", "f32", "i1") else int(value)
        self.constants.append((at, float(value) if not integer else 0.0, integer))
        return at

    def position(self, loop: int) -> int:
        at = self._register("i64")
        self.positions.append((at, loop))
        return at

    def tile_op(self, name: str, inputs: Sequence[int], of: Scalar | str, **facts: Any) -> int:
        out = self._register(of)
        special = facts.pop("special", False)
        self.ops.append(
            {"kind": "tile_op", "name": name, "in": list(inputs), "out": out, "type": self.types[out], **facts}
        )
        self.special += special
        self.plain += not special
        return out

    def other(self, kind: str, inputs: Sequence[int], of: Scalar | str, **facts: Any) -> int:
        out = self._register(of)
        source = self.types[inputs[0]] if inputs else "i64"
        self.ops.append(
            {"kind": kind, "in": list(inputs), "out": out, "type": self.types[out], "from": source, **facts}
        )
        self.plain += 1
        return out

    def owned(self, register: int) -> int:
        """A register that an op writes: a copy of one that holds a constant or a position."""
        held = {at for at, *_ in self.constants} | {at for at, _ in self.positions}
        if register not in held:
            return register
        return self.tile_op("copy", [register], self.types[register], exact=True)

    def description(self) -> dict[str, Any]:
        return {
            "registers": len(self.types),
            "inputs": self.inputs,
            "types": self.types,
            "constants": self.constants,
            "positions": self.positions,
            "ops": self.ops,
            "results": self.results,
            "tables": self.tables,
            "plain": float(self.plain),
            "special": float(self.special),
            "reads_outputs": self.reads_outputs,
        }


def emit(body: Body, name: str, attributes: dict[str, Any], inputs: list[int], of: Scalar) -> int | None:
    """The op's result, for elements of the types that its inputs have; None for an op that computes no elements."""
    kinds = [body.types[i] for i in inputs]
    if name in FLOATS and "parameters" not in attributes:
        row = FLOATS[name]
        if name == "spyreop.layernormscale" and hasattr(attributes.get("eps"), "value"):
            inputs = [body.tile_op("add", [inputs[0], body.constant(attributes["eps"].value, "f32")], "f32")]
        facts = {"constants": list(row.constants)} if row.constants else {}
        return body.tile_op(row.tile_op, inputs, of, exact=row.exact, special=row.special, **facts)
    if kinds and kinds[0] == "i1" and name in TRUTHS:
        return body.tile_op(TRUTHS[name].tile_op, inputs, of, exact=True)
    if name in INTEGERS:
        return body.tile_op(INTEGERS[name].tile_op, inputs, of, exact=INTEGERS[name].exact)
    if name in _UNSIGNED:
        return body.other("unsigned_op", inputs, of, unsigned_op=_UNSIGNED[name])
    if name.startswith("spyreop."):
        return _card_op(body, name.removeprefix("spyreop."), attributes, inputs, of)
    special = _SPECIAL.get(name)
    return special(body, attributes, inputs, of) if special else None


def _card_op(body: Body, name: str, attributes: dict[str, Any], inputs: list[int], of: Scalar) -> int | None:
    """A pointwise op of the card's own table."""
    row = OPS[name]
    function = row.function or "copy"
    parameters = [float(getattr(each, "value", each)) for each in attributes.get("parameters", [])]
    domain = "real" if body.types[inputs[-1]] in ("f16", "sen169", "bf16", "f32", "i1") else "integer"
    if (function, domain, len(inputs), len(parameters)) not in _tile_ops():
        return None
    facts = {"constants": parameters} if parameters else {}
    return body.tile_op(function, inputs, of, special=row.cost == "special", **facts)


@cache
def _tile_ops() -> set[tuple[str, str, int, int]]:
    return {(name, domain, arity, constants) for name, arity, domain, _, constants in _C.tile_ops()}


def _ceil_signed(body: Body, _: dict[str, Any], inputs: list[int], of: Scalar) -> int:
    negative = body.tile_op("neg", inputs[:1], of)
    return body.tile_op("neg", [body.tile_op("floor_divide", [negative, inputs[1]], of)], of)


def _ceil_unsigned(body: Body, _: dict[str, Any], inputs: list[int], of: Scalar) -> int:
    less = body.tile_op("sub", [inputs[1], body.constant(1, of)], of)
    return body.other("unsigned_op", [body.tile_op("add", [inputs[0], less], of), inputs[1]], of, unsigned_op=0)


def _compare_integers(body: Body, attributes: dict[str, Any], inputs: list[int], of: Scalar) -> int:
    predicate = attributes["predicate"]
    if body.types[inputs[0]] == "i1":  # true is 1 unsigned, -1 signed
        swapped = inputs[::-1] if predicate.startswith("s") else inputs
        plain = predicate if predicate in ("eq", "ne") else predicate[1:]
        return body.tile_op(plain, swapped, of, exact=True)
    if predicate in _SIGNED:
        return body.tile_op(_SIGNED[predicate], inputs, of, exact=True)
    ordered = inputs[::-1] if predicate in ("ugt", "uge") else inputs
    return body.other("unsigned_op", ordered, of, unsigned_op=_BELOW if predicate in ("ult", "ugt") else _NOT_ABOVE)


def _compare_floats(body: Body, attributes: dict[str, Any], inputs: list[int], of: Scalar) -> int:
    predicate = attributes["predicate"]
    if predicate in ("true", "false"):
        return body.owned(body.constant(predicate == "true", of))
    if predicate in _UNORDERED:
        inner = _compare_floats(body, {"predicate": _UNORDERED[predicate]}, inputs, of)
        return body.tile_op("logical_not", [inner], of, exact=True)
    if predicate in _ORDERED:
        return body.tile_op(_ORDERED[predicate], inputs, of, exact=True)
    if predicate == "one":
        each = [body.tile_op(name, inputs, of, exact=True) for name in ("lt", "gt")]
    else:  # uno
        each = [body.tile_op("isnan", [i], of, exact=True) for i in inputs]
    return body.tile_op("logical_or", each, of, exact=True)


def _select(body: Body, _: dict[str, Any], inputs: list[int], of: Scalar) -> int:
    return body.tile_op("where", inputs, of, exact=True)


def _to_float(signed: bool) -> Callable[..., int]:
    def convert(body: Body, _: dict[str, Any], inputs: list[int], of: Scalar) -> int:
        if body.types[inputs[0]] != "i1":
            return body.tile_op("to_real", inputs, of)
        return body.tile_op("neg" if signed else "copy", inputs, of, exact=True)

    return convert


def _to_integer(body: Body, _: dict[str, Any], inputs: list[int], of: Scalar) -> int:
    if str(of) == "i1":
        return body.tile_op("ne", [inputs[0], body.constant(0, "f32")], of, exact=True)
    return body.tile_op("to_integer", inputs, of)


def _integer_cast(signed: bool) -> Callable[..., int]:
    def convert(body: Body, _: dict[str, Any], inputs: list[int], of: Scalar) -> int:
        source, target = body.types[inputs[0]], body.element(of)
        if source == "i1" and target != "i1":
            number = body.tile_op("to_integer", inputs, of)
            return body.tile_op("neg", [number], of) if signed else number
        if target == "i1" and source != "i1":
            bit = body.tile_op("bitwise_and", [inputs[0], body.constant(1, source)], source, exact=True)
            return body.tile_op("to_real", [bit], of, exact=True)
        if not signed and source != "i1":
            return body.other("unsigned_op", [inputs[0], inputs[0]], of, unsigned_op=_AS_UNSIGNED)
        return body.other("cast", inputs, of)

    return convert


def _cast(body: Body, _: dict[str, Any], inputs: list[int], of: Scalar) -> int:
    return body.other("cast", inputs, of)


def _bitcast(body: Body, _: dict[str, Any], inputs: list[int], of: Scalar) -> int:
    return body.other("bitcast", inputs, of)


_SPECIAL: dict[str, Callable[..., int]] = {
    "arith.ceildivsi": _ceil_signed,
    "arith.ceildivui": _ceil_unsigned,
    "arith.cmpi": _compare_integers,
    "arith.cmpf": _compare_floats,
    "arith.select": _select,
    "arith.sitofp": _to_float(True),
    "arith.uitofp": _to_float(False),
    "arith.fptosi": _to_integer,
    "arith.fptoui": _to_integer,
    "arith.extf": _cast,
    "arith.truncf": _cast,
    "arith.extsi": _integer_cast(True),
    "arith.extui": _integer_cast(False),
    "arith.trunci": _integer_cast(True),
    "arith.index_cast": _integer_cast(True),
    "arith.index_castui": _integer_cast(False),
    "arith.bitcast": _bitcast,
    "tensor.bitcast": _bitcast,
}


def rounded(value: float, of: Scalar, half: str) -> float:
    """A constant as its format holds it."""
    if of.name == "f16" and half == "f16":
        with np.errstate(over="ignore"):
            return float(np.float16(value))
    return value
