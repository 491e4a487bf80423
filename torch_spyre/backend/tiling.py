"""How much of a step a core holds in LX at a time."""

from __future__ import annotations

from math import prod

from ..card import description
from ..card.description import STICK_BYTES
from ..ir.core_split import divided
from ..ir.superdsc_view import elements_of
from ..kernel_types import Operand, Step


class TooLittleLX(RuntimeError):
    """Not even the smallest tiles of an op fit."""


def resident_end(step: Step) -> int:
    """The first byte of LX behind the operands of a step that are in LX."""
    held = [operand for operand in step["operands"] if "lx" in operand]
    if not held:
        return 0
    points = _points(step)
    return max(
        operand["lx"] + _reach(operand, step["extents"] if "core_strides" in operand else points) for operand in held
    )


def _reach(operand: Operand, points: list[int]) -> int:
    elements, along = elements_of(operand["format"]), operand.get("stick", -1)
    far = sum(
        ((n - 1) // elements if i == along else n - 1) * stride
        for i, (n, stride) in enumerate(zip(points, operand["strides"], strict=True))
    )
    return far // STICK_BYTES * STICK_BYTES + STICK_BYTES


def _points(step: Step) -> list[int]:
    return [
        divided("", extent, cores, unit).points
        for extent, cores, unit in zip(step["extents"], step["slices"], _units(step), strict=True)
    ]


def tile_of(step: Step, budget: int) -> list[int]:
    """Points of each dimension such that two tiles of every operand fit: one being computed, one being loaded.

    That is a core's whole slice if it fits. Otherwise outer dimensions are halved before inner ones, so that neighbours
    in memory are loaded together. No dimension goes below its grain (whole sticks; the rows that fill the matrix unit)
    before all others have reached theirs. Raises TooLittleLX if even the smallest tiles do not fit.
    """
    units, tile = _units(step), _points(step)
    grains = list(units)
    if step["op"] == "matmul":
        grains[-3] = int(description.constants()["pt_rows"])
    if step["op"] == "attention":  # whole rows of results, and keys by the stick
        grains[-4], grains[-3], grains[-2] = int(description.constants()["pt_rows"]), tile[-3], max(grains[-2], 64)
    if step["op"] == "paged_attention":  # whole rows, and keys by the page
        grains[3], grains[6], grains[7] = tile[3], tile[6], tile[7]
        tile[4], tile[5] = 1, min(tile[5], units[5])
    for least in (grains, units):
        for i, grain in enumerate(least):
            while tile[i] > grain and 2 * footprint(step, tile) > budget:
                tile[i] = max(-(-tile[i] // 2 // units[i]) * units[i], grain)
    if 2 * footprint(step, tile) > budget:
        raise TooLittleLX(_too_little(step, tile, budget))
    return tile


def _too_little(step: Step, tile: list[int], budget: int) -> str:
    where = f" ({step['source']})" if step.get("source") else ""
    lx = int(description.constants()["lx_bytes"])
    return (
        f"{step.get('function', step['op'])} over {step['extents']}{where}: two tiles of every operand, in whole "
        f"sticks no smaller than {tile} points, take {2 * footprint(step, tile)} bytes; of LX {max(budget, 0)} "
        f"are left to tiles: lx_bytes = {lx}, of which the program has {description.constants()['lx_reserved_bytes']:g}"
    )


def footprint(step: Step, tile: list[int]) -> int:
    """Bytes of one tile of every operand, in whole sticks, and no less than the card's verifier counts."""
    table = {"gather": 1, "scatter": 0}.get(step["op"], -1)
    operands = [(operand, tile, i == table) for i, operand in enumerate(step["operands"]) if "argument" in operand]
    return sum(max(sticks_of(*each) * STICK_BYTES, _elements(*each)) for each in operands)


def _elements(operand: Operand, tile: list[int], indexed: bool) -> int:
    """Bytes of all elements; windows that overlap share sticks, but an element of two windows counts twice."""
    elements, along = elements_of(operand["format"]), operand.get("stick", -1)
    counts = (
        -(-points // elements) * elements if i == along else points if indexed or stride else 1
        for i, (points, stride) in enumerate(zip(tile, operand["strides"], strict=True))
    )
    return prod(counts) * STICK_BYTES // elements


def sticks_of(operand: Operand, tile: list[int], indexed: bool) -> int:
    """Sticks that so many points of each dimension touch; ``indexed``: an index chooses them."""
    elements, along = elements_of(operand["format"]), operand.get("stick", -1)
    cores = operand.get("core_strides", [0] * len(tile))
    counts = []
    for i, (points, stride) in enumerate(zip(tile, operand["strides"], strict=True)):
        if i == along:
            counts.append(-(-points // elements))
        elif indexed or abs(stride) >= STICK_BYTES or cores[i]:  # an index may select any stick
            counts.append(points)
        elif stride:
            counts.append((points - 1) * abs(stride) // STICK_BYTES + 1)
    return prod(counts)


def _units(step: Step) -> list[int]:
    """The points of each dimension that make whole sticks of every operand along it; stick sizes are powers of two."""
    units = [1] * len(step["extents"])
    for operand in step["operands"]:
        if "strides" in operand and operand.get("stick", -1) >= 0:
            units[operand["stick"]] = max(units[operand["stick"]], elements_of(operand["format"]))
    return units
