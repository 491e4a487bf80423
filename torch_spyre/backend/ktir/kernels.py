"""A module that the compiler emitted as a card program: each function is one step.

A function says so itself: its loops (``ktdp.loops``: extent, cores, dimensions of the views), which op its nest
is (``spyre_op``), and along which loop a view is in sticks. Everything else follows from its views and its body.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any, cast

from ...card.lx_budget import tile_budget
from ...ir.core_split import json_number
from ...ir.ktir.attributes import Integer, Numbers
from ...ir.ktir.emit import BYTES, FORMATS
from ...ir.ktir.model import Func, Module, Op, Value
from ...ir.ktir.parser import parse
from ...ir.ktir.read_forms import DYNAMIC_NUMBER
from ...ir.ktir.types import MemRef, Scalar
from ...ir.ktir.verify import verify
from ...ir.step import compute_step
from ...ir.superdsc_view import elements_of
from ...kernel_types import Constant, KernelDescription, Operand, Step
from ...ops.table import OPS, OpRow
from ..tiling import resident_end, tile_of


def compile_module(name: str, text: str, arguments: Sequence[int], pool_bytes: int) -> KernelDescription:
    """The kernel's description. Raises KtirError where a function is none that the compiler emits."""
    module = parse(text)
    verify(module)
    untiled = [_Reader(module, func, len(arguments)).step() for func in module.functions.values()]
    resident = max(map(resident_end, untiled), default=0)
    budget = tile_budget(resident)
    steps: list[Step] = []
    for each in untiled:
        step: Step = {**each, "tile": tile_of(each, budget)}
        if resident:
            step["staging"] = resident
        steps.append(step)
    return {
        "name": name,
        "arguments": list(arguments),
        "allocate": [pool_bytes] if pool_bytes else [],
        "steps": [{"type": "Compute", "program": {"steps": steps}}],
    }


_SCALAR = re.compile(r"scalar(\d{1,7})_\w+")


class _Reader:
    def __init__(self, module: Module, func: Func, pool: int) -> None:
        self.module, self.func, self.pool = module, func, pool
        loops = func.attributes.get("ktdp.loops")
        self.loops = [[_whole(n) for n in each] for each in loops] if isinstance(loops, list) else []
        if not self.loops or any(len(each) != 3 or min(each) < 1 for each in self.loops):
            raise module.error(func, "ktdp.loops does not list loops as [extent, cores, dimensions]")
        if prod(cores for _, cores, _ in self.loops) != prod(func.grid):
            raise module.error(func, f"the loops are divided over other cores than the grid {func.grid}")

    def step(self) -> Step:
        nest = next((op for op in self.func.region.ops if "spyre_op" in op.attributes), None)
        stored = next((op for op in self.func.region.ops if op.name == "ktdp.store"), None)
        if nest is None or stored is None or nest.attributes["spyre_op"] not in OPS:
            raise self.module.error(self.func, "the function has no nest with a spyre_op, or no store")
        row = OPS[nest.attributes["spyre_op"]]
        written = self.operand(nest, stored.operands[1])
        count = int(nest.attributes["inputs"])
        loaded = [self.operand(nest, _made_by(self, nest, v, "ktdp.load").operands[0]) for v in nest.operands[:count]]
        parameters = [float(getattr(p, "value", p)) for p in nest.attributes.get("parameters", [])]
        maps = nest.attributes["iterator_types"]
        reduced, at = 0, 0
        for _, _, dimensions in self.loops:
            reduced += str(maps[at]).strip('"') == "reduction"
            at += dimensions
        starts = [row.start] if row.kind == "reduction" and row.start is not None else []
        step = compute_step(
            row,
            [extent for extent, _, _ in self.loops],
            [cores for _, cores, _ in self.loops],
            [written, *(self.inputs(nest, row, loaded) if row.is_pointwise else loaded)],
            reduced=reduced if row.kind == "reduction" else 0,
            constants=[json_number(value) for value in [*starts, *parameters]],
        )
        if "checked" in nest.attributes:
            step["checked"] = True
        if source := self.func.attributes.get("ktdp.source"):
            step["source"] = str(source)
        return step

    def inputs(self, nest: Op, row: OpRow, loaded: list[Operand]) -> list[Operand | Constant]:
        """What the op of a pointwise nest reads, in its order: tensors and numbers."""
        region = nest.regions[0]
        op = region.end.operands[0].op
        if op is None or not op.name.startswith("spyreop."):
            raise self.module.error(nest, "its body is not one op of spyreop")
        found: list[Operand | Constant] = []
        for value in op.operands:
            if value in region.arguments:
                found.append(loaded[region.arguments.index(value)])
                continue
            constant = value.op.attributes.get("value") if value.op is not None else None
            of, number = value.type, getattr(constant, "value", None)
            if known_at_launch := _SCALAR.fullmatch(value.name) if value in self.func.region.arguments else None:
                number = f"%{known_at_launch[1]}"
            if number is None or not isinstance(of, Scalar):
                raise self.module.error(op, "an operand is neither a tensor's element nor a constant")
            integer = not of.is_float
            found.append({"value": json_number(number), "format": "IEEE_INT32" if integer else "IEEE_FP32"})
        return found

    def operand(self, nest: Op, access: Value) -> Operand:
        """The addresses of a tensor, by the loops of the op."""
        at = _made_by(self, nest, access, "ktdp.construct_access_tile")
        view = _made_by(self, nest, at.operands[0], "ktdp.construct_memory_view")
        of = view.results[0].type
        assert isinstance(of, MemRef)
        element, strides = of.element.name, view.attributes.get("static_strides")
        if element not in FORMATS or not isinstance(strides, Numbers) or DYNAMIC_NUMBER in strides.values:
            raise self.module.error(view, "the view has another type than the card's, or strides that are not known")
        stick = _whole(view.attributes.get("stick_loop", -1))
        elements, width = elements_of(FORMATS[element]), BYTES[element]
        kept, result = self.kept(nest, access), []
        next_stride = iter(strides.values)
        for i, (_, _, dimensions) in enumerate(self.loops):
            if i not in kept:
                result.append(0)
                continue
            own = [next(next_stride) for _ in range(dimensions)]
            if i != stick:
                result.append(own[-1] * width)
                continue
            sizes = self.steps(i, view, kept)
            result.append(own[sizes.index(elements)] * width)
        operand: dict[str, Any] = {"strides": result, "format": FORMATS[element]}
        base, offset = self.base(view)
        if base is None:
            operand = {"lx": offset * width, **operand}
        else:
            position = self.func.region.arguments.index(base)
            argument = self.pool if base.name == "pool" else position
            operand = {"argument": argument, "offset": offset * width, **operand}
        if stick >= 0:
            operand["stick"] = stick
        return cast(Operand, operand)

    def steps(self, loop: int, view: Op, kept: list[int]) -> list[int]:
        """By how many elements of the loop each of its dimensions counts."""
        first = sum(self.loops[i][2] for i in kept if i < loop)
        shape = view.results[0].type.shape[first : first + self.loops[loop][2]]  # type: ignore[union-attr]
        return [prod(shape[k + 1 :]) for k in range(len(shape))]

    def kept(self, nest: Op, access: Value) -> list[int]:
        """The loops that a tensor's map has."""
        position = len(nest.operands) - 1
        for i, value in enumerate(nest.operands[: int(nest.attributes["inputs"])]):
            if value.op is not None and access in value.op.operands:
                position = i
        dims = nest.attributes["indexing_maps"][position].plain_dims or []
        found, at = [], 0
        for i, (_, _, dimensions) in enumerate(self.loops):
            if at in dims:
                found.append(i)
            at += dimensions
        return found

    def base(self, view: Op) -> tuple[Value | None, int]:
        """The argument that a view begins in, or none for LX, and how many elements behind its beginning."""
        source = view.operands[0]
        if source.op is None:
            return source, 0
        if source.op.name == "arith.constant":
            return None, self.number(source)
        if source.op.name == "arith.addi" and source.op.operands[0].op is None:
            return source.op.operands[0], self.number(source.op.operands[1])
        raise self.module.error(view, "its base is neither a constant nor an argument and a constant")

    def number(self, value: Value) -> int:
        given = value.op.attributes.get("value") if value.op is not None else None
        if not isinstance(given, Integer):
            raise self.module.error(self.func, "an offset is not constant")
        return given.value


def _whole(given: Any) -> int:
    number = getattr(given, "value", given)
    return number if isinstance(number, int) else -1


def _made_by(reader: _Reader, nest: Op, value: Value, name: str) -> Op:
    if value.op is None or value.op.name != name:
        raise reader.module.error(nest, f"what it reads or writes does not come from a {name}")
    return value.op
