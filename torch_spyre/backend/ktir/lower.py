"""A function of KTIR as a tile program: every value gets a slot, every op an instruction or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...card import description
from ...card.description import STICK_BYTES
from ...ir.ktir.attributes import Dense, Float, Integer
from ...ir.ktir.model import Func, Module, Op, Region, Value
from ...ir.ktir.types import MemRef, RuntimeArgument, Scalar, Tensor, Type
from . import linalg, memory, tensors
from .bodies import Body, emit, rounded
from .live import finish

Instruction = dict[str, Any]
MOST_CALLS = 64  # deep
MOST_INSTRUCTIONS = 1 << 20


def lower(module: Module, func: Func) -> dict[str, Any]:
    """What ``_C.TileProgram`` takes. Raises KtirError for what no tile program can do."""
    lowering = Lowering(module, func)
    constants = description.constants()
    body = lowering.function(func)
    finish(body, lowering.tiles)
    return {
        "name": func.name,
        "grid": func.grid,
        "slots": lowering.slots,
        "arguments": lowering.arguments,
        "body": body,
        "lx_bytes": int(constants["lx_bytes"]),
        "stick_bytes": STICK_BYTES,
        "uses_scratchpads": lowering.uses_scratchpads,
    }


def half_of(module: Module) -> str:
    """The format of f16: IEEE's, unless the module says that of the card."""
    given = module.attributes.get("ktdp.half", "f16")
    return "sen169" if str(given).strip('"') == "sen169" else "f16"


class Lowering:
    def __init__(self, module: Module, func: Func) -> None:
        self.module, self.half = module, half_of(module)
        self.slots, self.calls = 0, 0
        self.slot_of: dict[Value, int] = {}
        self.tiles: set[int] = set()  # slots that hold tiles
        self.arguments: list[int] = []
        self.uses_scratchpads = False
        self.instructions: list[Instruction] = []
        self.op: Op | Func = func
        self.count = 0

    # Slots

    def slot(self, value: Value) -> int:
        found = self.slot_of.get(value)
        if found is None:
            found = self.slot_of[value] = self.fresh(value.type)
        return found

    def fresh(self, of: Type | None = None) -> int:
        self.slots += 1
        if isinstance(of, Tensor):
            self.tiles.add(self.slots - 1)
        return self.slots - 1

    def in_(self, values: list[Value]) -> list[int]:
        return [self.slot(v) for v in values]

    def element(self, of: Scalar | str) -> str:
        return {"index": "i64", "f16": self.half}.get(str(of), str(of))

    def refuse(self, why: str) -> Exception:
        return self.module.error(self.op, why)

    def add(self, code: str, in_: list[int], out: list[int], **fields: Any) -> Instruction:
        where = self.module.where(self.op) if isinstance(self.op, Op) else self.op.name
        instruction = {"code": code, "in": in_, "out": out, "where": where, **fields}
        self.instructions.append(instruction)
        self.count += 1
        if self.count > MOST_INSTRUCTIONS:
            raise self.refuse(f"more than {MOST_INSTRUCTIONS} instructions")
        return instruction

    def integer(self, value: int) -> int:
        out = self.fresh()
        self.add("integer", [], [out], numbers=[value])
        return out

    # Functions and blocks

    def function(self, func: Func) -> dict[str, Any]:
        for value in func.region.arguments:
            slot = self.fresh()
            self.arguments.append(slot)
            if isinstance(value.type, MemRef):  # a base address, with the view that its type says
                memory.plain_view(self, slot, value)
            elif isinstance(value.type, Scalar | RuntimeArgument):
                self.slot_of[value] = slot
            else:
                raise self.refuse(f"an argument has the type {value.type}: tiles are loaded from memory")
        return self.block(func.region, keep=True)

    def block(self, region: Region, arguments: list[int] | None = None, keep: bool = False) -> dict[str, Any]:
        outer, self.instructions = self.instructions, self.instructions if keep else []
        slots = self.in_(region.arguments) if arguments is None and not keep else arguments or []
        results: list[int] = []
        for op in region.ops:
            self.op = op
            if op.name.endswith(("yield", "return", "yield_partial", "yield_reduced")):
                results = self.in_(op.operands)
            else:
                self.instruction(op)
        done = {"arguments": slots, "results": results, "instructions": self.instructions}
        self.instructions = outer
        return done

    def instruction(self, op: Op) -> None:
        reader = _LOWERINGS.get(op.name)
        if reader is not None:
            reader(self, op)
        else:
            self.compute(op)

    def compute(self, op: Op) -> None:
        """An elementwise op, on scalars or tiles."""
        body = Body(self.half)
        elements = [v.type.element if isinstance(v.type, Tensor) else v.type for v in op.operands]
        if any(not isinstance(e, Scalar) for e in elements):
            raise self.refuse("the operands are neither tiles nor scalars")
        registers = [body.input(str(e)) for e in elements]
        of = op.results[0].type
        target = of.element if isinstance(of, Tensor) else of
        if not isinstance(target, Scalar):
            raise self.refuse(f"the result has the type {of}")
        result = emit(body, op.name, op.attributes, registers, target)
        if result is None:
            raise self.refuse("this engine does not know the operation")
        body.results = [body.owned(result)]
        self.add("compute", self.in_(op.operands), self.in_(op.results), body=body.description())


def _constant(lo: Lowering, op: Op) -> None:
    value, out = op.attributes.get("value"), lo.in_(op.results)
    of = op.results[0].type
    if isinstance(of, Tensor):
        if not isinstance(value, Dense):
            raise lo.refuse(f"the value of a {of} is dense<...>")
        real = of.element.is_float or of.element.name == "i1"
        values = [float(v) for v in value.values] if real else [_signed(int(v), of.element) for v in value.values]
        lo.add(
            "constant",
            [],
            out,
            type=lo.element(of.element),
            numbers=list(of.shape),
            **{"reals" if real else "values": values},
        )
        return
    number = value.value if isinstance(value, Integer | Float) else value
    if isinstance(of, Scalar) and (of.is_float or of.name == "i1") and isinstance(number, int | float):
        lo.add("real", [], out, reals=[rounded(float(bool(number)) if of.name == "i1" else float(number), of, lo.half)])
    elif isinstance(of, Scalar) and isinstance(number, int):
        lo.add("integer", [], out, numbers=[_signed(number, of)])
    else:
        raise lo.refuse(f"a constant of the type {of} has no value {value}")


def _signed(value: int, of: Scalar) -> int:
    bits = {"i8": 8, "i16": 16, "i32": 32}.get(of.name, 64)
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _for(lo: Lowering, op: Op) -> None:
    region = op.regions[0]
    in_, out = lo.in_(op.operands), lo.in_(op.results)
    block = lo.block(region)
    lo.op = op
    lo.add("loop", in_, out, blocks=[block])


def _if(lo: Lowering, op: Op) -> None:
    in_, out = lo.in_(op.operands), lo.in_(op.results)
    blocks = [lo.block(region, []) for region in op.regions]
    lo.op = op
    while len(blocks) < 2:
        blocks.append({"arguments": [], "results": [], "instructions": []})
    lo.add("branch", in_, out, blocks=blocks)


def _call(lo: Lowering, op: Op) -> None:
    """The callee's instructions in place of the call."""
    func = lo.module.functions[op.attributes["callee"]]
    lo.calls += 1
    if lo.calls > MOST_CALLS:
        raise lo.refuse(f"calls are more than {MOST_CALLS} deep")
    given = lo.in_(op.operands)
    outer, lo.slot_of = lo.slot_of, dict(zip(func.region.arguments, given, strict=True))
    done = lo.block(func.region, [], keep=True)
    lo.slot_of = outer
    lo.calls -= 1
    for value, slot in zip(op.results, done["results"], strict=True):
        lo.slot_of[value] = slot


_LOWERINGS: dict[str, Callable[[Lowering, Op], None]] = {
    **linalg.LOWERINGS,
    **memory.LOWERINGS,
    **tensors.LOWERINGS,
    "scf.for": _for,
    "scf.if": _if,
    "func.call": _call,
    "arith.constant": _constant,
}
