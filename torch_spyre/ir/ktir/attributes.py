"""Attributes of ops: plain Python values where the text says no more, and the classes here where it does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .affine import AffineMap, IntegerSet
from .types import Scalar, Tensor, Type


@dataclass(frozen=True)
class Integer:
    value: int
    type: Type

    def __str__(self) -> str:
        return f"{self.value} : {self.type}"


@dataclass(frozen=True)
class Float:
    value: float
    type: Scalar

    def __str__(self) -> str:
        return f"{float_text(self.value, self.type)} : {self.type}"


@dataclass(frozen=True)
class Dense:
    """One value for all elements, or a value each, in row-major order."""

    values: tuple[float, ...] | tuple[int, ...]
    type: Tensor

    def __str__(self) -> str:
        def one(value: float) -> str:
            if self.type.element.name == "i1":
                return "true" if value else "false"
            return float_text(value, self.type.element) if self.type.element.is_float else str(int(value))

        def nested(shape: tuple[int, ...], values: tuple[float, ...]) -> str:
            if not shape:
                return one(values[0])
            step = len(values) // shape[0] if shape[0] else 0
            return f"[{', '.join(nested(shape[1:], values[i * step : (i + 1) * step]) for i in range(shape[0]))}]"

        body = one(self.values[0]) if len(self.values) == 1 else nested(self.type.shape, self.values)
        return f"dense<{body}> : {self.type}"


@dataclass(frozen=True)
class Numbers:
    """array<i64: ...>"""

    type: str
    values: tuple[int, ...]

    def __str__(self) -> str:
        body = f": {', '.join(map(str, self.values))}" if self.values else ""
        return f"array<{self.type}{body}>"


@dataclass(frozen=True)
class Symbol:
    name: str

    def __str__(self) -> str:
        return f"@{self.name}"


@dataclass(frozen=True)
class Opaque:
    """An attribute of a dialect, as it was written."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Unit:
    def __str__(self) -> str:
        return "unit"


Attribute = (
    Integer
    | Float
    | Dense
    | Numbers
    | Symbol
    | Opaque
    | Unit
    | AffineMap
    | IntegerSet
    | bool
    | str
    | list
    | dict
    | Type
)


def float_text(value: float, of: Scalar) -> str:
    """So that it is read back as the same number; what has no decimals is written as bits."""
    if value != value or value in (float("inf"), float("-inf")):
        bits = {"f16": (0x7E00, 0x7C00, 0xFC00), "bf16": (0x7FC0, 0x7F80, 0xFF80)}.get(
            of.name, (0x7FC00000, 0x7F800000, 0xFF800000)
        )
        return f"0x{bits[0] if value != value else bits[1] if value > 0 else bits[2]:X}"
    text = repr(float(value))
    mantissa, _, exponent = text.partition("e")
    mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
    return f"{mantissa}e{exponent}" if exponent else mantissa


def text_of(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    if isinstance(value, dict):
        return dictionary(value)
    return str(value)


def dictionary(attributes: dict[str, Any]) -> str:
    parts = (k if isinstance(v, Unit) else f"{k} = {text_of(v)}" for k, v in attributes.items())
    return f"{{{', '.join(parts)}}}"
