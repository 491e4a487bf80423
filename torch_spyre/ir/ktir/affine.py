"""Affine expressions, maps and integer sets: as data, in text, and in postfix order for the card."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

# ("c", value), ("d", number), ("s", number), or (operation, left, right)
Expression = tuple

_CODES = {"c": 0, "d": 1, "s": 2, "+": 3, "*": 4, "floordiv": 5, "ceildiv": 6, "mod": 7}


def text_of(e: Expression) -> str:
    match e[0]:
        case "c":
            return str(e[1])
        case "d" | "s":
            return f"{e[0]}{e[1]}"
        case "+":
            right = text_of(e[2])
            return f"{text_of(e[1])} - {right[1:]}" if right.startswith("-") else f"{text_of(e[1])} + {right}"
        case "*":
            if e[2] == ("c", -1):
                return f"-{_inner(e[1])}"
            return f"{_inner(e[1])} * {_inner(e[2])}"
        case operation:
            return f"{_inner(e[1])} {operation} {_inner(e[2])}"


def _inner(e: Expression) -> str:
    return text_of(e) if e[0] in "cds" and not (e[0] == "c" and e[1] < 0) else f"({text_of(e)})"


def postfix(e: Expression) -> list[int]:
    """Pairs of an operation and its number."""
    if e[0] in ("c", "d", "s"):
        return [_CODES[e[0]], e[1]]
    return [*postfix(e[1]), *postfix(e[2]), _CODES[e[0]], 0]


def evaluate(e: Expression, dims: list[int], symbols: list[int]) -> int:
    match e[0]:
        case "c":
            return int(e[1])
        case "d":
            return dims[e[1]]
        case "s":
            return symbols[e[1]]
    left, right = evaluate(e[1], dims, symbols), evaluate(e[2], dims, symbols)
    match e[0]:
        case "+":
            return left + right
        case "*":
            return left * right
        case "floordiv":
            return left // right
        case "ceildiv":
            return -(-left // right)
    return left % right


def shifted(e: Expression, dims: dict[int, Expression]) -> Expression:
    """With dimensions replaced."""
    if e[0] == "d":
        return dims.get(e[1], e)
    return e if e[0] in ("c", "s") else (e[0], shifted(e[1], dims), shifted(e[2], dims))


def _head(dims: int, symbols: int) -> str:
    names = ", ".join(f"d{i}" for i in range(dims))
    return f"({names})" + (f"[{', '.join(f's{i}' for i in range(symbols))}]" if symbols else "")


@dataclass(frozen=True)
class AffineMap:
    dims: int
    symbols: int
    results: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"affine_map<{_head(self.dims, self.symbols)} -> ({', '.join(map(text_of, self.results))})>"

    @property
    def plain_dims(self) -> list[int] | None:
        """Which dimension each result is, if each is one."""
        return [e[1] for e in self.results] if all(e[0] == "d" for e in self.results) else None

    @property
    def is_identity(self) -> bool:
        return self.plain_dims == list(range(self.dims)) and len(self.results) == self.dims


def identity(dims: int) -> AffineMap:
    return AffineMap(dims, 0, tuple(("d", i) for i in range(dims)))


@dataclass(frozen=True)
class IntegerSet:
    """Constraints: an expression that is >= 0, or == 0 where ``equal``."""

    dims: int
    symbols: int
    rows: tuple[Expression, ...]
    equal: tuple[bool, ...]

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        rows = (f"{text_of(e)} {'==' if q else '>='} 0" for e, q in zip(self.rows, self.equal, strict=True))
        return f"affine_set<{_head(self.dims, self.symbols)} : ({', '.join(rows)})>"


def box(sizes: list[int], low: list[int] | None = None) -> IntegerSet:
    """low <= d < low + size, each dimension."""
    rows: list[Expression] = []
    for i, n in enumerate(sizes):
        start = low[i] if low else 0
        rows.append(("+", ("d", i), ("c", -start)) if start else ("d", i))
        rows.append(("+", ("*", ("d", i), ("c", -1)), ("c", start + n - 1)))
    return IntegerSet(len(sizes), 0, tuple(rows), (False,) * len(rows))
