"""A program as ops: values, regions of one block each, functions in a module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .source import KtirError, Source
from .types import Type


@dataclass(slots=True, eq=False)
class Value:
    type: Type
    name: str = ""  # as it was written, without %
    op: Op | None = None  # that makes it; None: a block's argument


@dataclass(slots=True, eq=False)
class Region:
    arguments: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    @property
    def end(self) -> Op:
        return self.ops[-1]


@dataclass(slots=True, eq=False)
class Op:
    name: str
    operands: list[Value] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    position: int = 0

    def result(self, type: Type) -> Value:
        value = Value(type, "", self)
        self.results.append(value)
        return value


@dataclass(slots=True, eq=False)
class Func:
    name: str
    region: Region
    results: list[Type] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    position: int = 0

    @property
    def grid(self) -> list[int]:
        given = self.attributes.get("grid", [])
        return [int(getattr(n, "value", n)) for n in getattr(given, "values", given)] or [1]


@dataclass(slots=True, eq=False)
class Module:
    functions: dict[str, Func] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    source: Source = field(default_factory=lambda: Source(""))

    def where(self, op: Op) -> str:
        line, column = self.source.place(op.position)
        name = f"{self.source.name}:" if self.source.name else ""
        return f"{name}{line}:{column}: {op.name}"

    def error(self, op: Op | Func, why: str) -> KtirError:
        return self.source.error(op.position, f"{op.name}: {why}")


def walk(region: Region) -> Iterator[Op]:
    """All ops, inner ones after the op that has them."""
    stack = [iter(region.ops)]
    while stack:
        op = next(stack[-1], None)
        if op is None:
            stack.pop()
            continue
        yield op
        for inner in reversed(op.regions):
            stack.append(iter(inner.ops))
