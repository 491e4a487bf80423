"""Coordinates of a tensor on the card as expressions over loop symbols, and the byte addresses they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from math import prod
from typing import NamedTuple

import sympy

from ..card.description import STICK_BYTES


class IndirectAccess(sympy.Function):
    """``IndirectAccess(arg2)``: the value of argument 2 at this point supplies the coordinate."""


@cache
def symbol(name: str) -> sympy.Symbol:
    """The symbol of a loop. Symbols with other assumptions are other symbols to sympy: make them all here."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


@cache
def indirect(position: int) -> sympy.Expr:
    """The coordinate that ``args[position]`` supplies."""
    return IndirectAccess(symbol(f"arg{position}"))


@cache
def along_sticks(expr: sympy.Expr, elements: int) -> tuple[sympy.Expr, sympy.Expr]:
    """The coordinates (tile, lane) of a dimension that lies along sticks of so many elements."""
    return sympy.floor(expr / elements), sympy.Mod(expr, elements)


class Terms(NamedTuple):
    """One coordinate, taken apart: constant + sum(coefficient * symbol) + tiles + lane. Names, not symbols."""

    constant: int
    plain: tuple[tuple[str, int], ...]
    tiles: tuple[tuple[str, int, int], ...]  # coefficient * floor(name / elements)
    lanes: tuple[tuple[str, int, int], ...]  # coefficient * Mod(name, elements)


def via(position: int) -> str:
    """What the value of an index tensor is called among the terms; no loop has such a name."""
    return f"@{position}"


@lru_cache(maxsize=1 << 16)
def terms(expr: sympy.Expr) -> Terms:
    """Raises ValueError where the expression is not of the form that a step can walk."""
    constant, plain, tiles, lanes = 0, [], [], []
    for term, coefficient in sympy.sympify(expr).as_coefficients_dict().items():
        if not coefficient.is_Integer:
            raise ValueError(f"{expr} has the fraction {coefficient}")
        factor = int(coefficient)
        if term.is_Integer:  # 1, or 0 where the whole expression is
            constant = factor * int(term)
        elif isinstance(term, sympy.floor):
            parts = term.args[0].as_coefficients_dict()
            inner, part = next(iter(parts.items()))
            if len(parts) != 1 or part.p != 1:
                raise ValueError(f"{term} is no count of sticks")
            tiles.append((_name(inner), int(part.q), factor))
        elif isinstance(term, sympy.Mod):
            lanes.append((_name(term.args[0]), int(term.args[1]), factor))
        else:
            plain.append((_name(term), factor))
    return Terms(constant, tuple(plain), tuple(tiles), tuple(lanes))


def _name(expr: sympy.Expr) -> str:
    if isinstance(expr, sympy.Symbol):
        return str(expr.name)
    if isinstance(expr, IndirectAccess) and str(expr.args[0]).startswith("arg"):
        return via(int(str(expr.args[0])[3:]))
    raise ValueError(f"{expr} is neither a loop symbol nor IndirectAccess(argN)")


class ByteAccess(NamedTuple):
    """Byte address of a point: offset + dot(point, strides); along ``stick`` a stride is the distance of two sticks."""

    offset: int
    strides: dict[str, int]  # by symbol name; via(position) for what an index tensor supplies
    stick: str  # the name that walks along the tensor's sticks; "" none


def device_strides(device_size: Sequence[int], elements: int) -> list[int]:
    """Bytes of a step along each device dimension, the last of which is inside one stick."""
    strides = [STICK_BYTES // elements]
    step = STICK_BYTES
    for size in reversed(device_size[:-1]):
        strides.append(step)
        step *= size
    return strides[::-1]


def device_bytes(device_size: Sequence[int]) -> int:
    return STICK_BYTES * prod(device_size[:-1])


def byte_access(
    coordinates: Sequence[sympy.Expr], device_size: Sequence[int], elements: int, space: Mapping[str, tuple[int, int]]
) -> ByteAccess:
    """How the coordinates walk over bytes. Raises ValueError where sticks are not ``floor(c/E)`` and ``Mod(c, E)``."""
    parts = [terms(expr) for expr in coordinates]
    offset = 0
    strides: dict[str, int] = {}
    tiled: list[str] = []
    for at, expr, step in zip(parts, coordinates, device_strides(device_size, elements), strict=True):
        offset += at.constant * step
        for name, factor in at.plain:
            strides[name] = strides.get(name, 0) + factor * step
        for name, length, factor in at.tiles:
            if length != elements or name in tiled:
                raise ValueError(f"{expr} does not count sticks of {elements} elements once")
            tiled.append(name)
            strides[name] = strides.get(name, 0) + factor * step
    last = parts[-1]
    if any(at.lanes for at in parts[:-1]):
        raise ValueError("only the last coordinate is a position inside a stick")
    if tiled and not last.lanes:
        raise ValueError(f"{tiled[0]} counts sticks but does not walk inside them")
    if last.lanes:
        ((stick, length, factor), *more) = last.lanes
        if length != elements or factor != 1 or more or last.constant or last.plain:
            raise ValueError(
                f"{coordinates[-1]} is not Mod(c, {elements}) alone: what begins inside a stick has no Mod"
            )
        if any(name != stick for name in tiled):
            raise ValueError(f"{tiled[0]} counts sticks but does not walk inside them")
        if any(name == stick for at in parts for name, _ in at.plain):
            raise ValueError(f"{stick} walks along sticks and along another dimension too")
        if stick not in tiled and space.get(stick, (elements + 1, 1))[0] > elements:
            raise ValueError(f"{stick} passes the end of its stick, and no coordinate counts the sticks")
        strides.setdefault(stick, STICK_BYTES)  # one stick at most: any distance to the next is right
        return ByteAccess(offset, strides, stick)
    if len(last.plain) == 1 and not last.constant:
        # A loop that fills one stick from its beginning walks along sticks, whichever way it is written.
        name, factor = last.plain[0]
        length, cores = space.get(name, (elements + 1, 1))
        if factor == cores == 1 and length <= elements and strides[name] == STICK_BYTES // elements:
            strides[name] = STICK_BYTES
            return ByteAccess(offset, strides, name)
    return ByteAccess(offset, strides, "")


def bounds(at: Terms, ranges: Mapping[str, int]) -> tuple[int, int]:
    """The smallest and largest value of a coordinate over all points."""
    low = high = at.constant
    for name, factor in at.plain:
        way = factor * (ranges[name] - 1)
        low, high = low + min(way, 0), high + max(way, 0)
    for name, length, factor in at.tiles:
        way = factor * ((ranges[name] - 1) // length)
        low, high = low + min(way, 0), high + max(way, 0)
    for name, length, factor in at.lanes:
        high += factor * min(ranges[name] - 1, length - 1)
    return low, high
