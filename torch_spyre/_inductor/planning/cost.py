"""What the clock says about one op of a plan: how it is divided, and which of its operands lie in LX."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ... import _C
from ...backend.steps import OPCODES
from ...card import description
from ...ops.table import OPS
from ..layout.device_ir import DeviceOp, Plan
from ..loop_ir import Access
from .slicing_limits import byte_strides

# (slices, which of the sides lie in LX, the output last)
Choice = tuple[tuple[int, ...], tuple[bool, ...]]
TIMED = ("pointwise", "reduction", "matmul", "attention")


class Costs:
    """Times in microseconds, each asked for once: ops of equal layers are equal."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.asked: dict[tuple[object, Choice], float] = {}
        self.best_products: dict[object, tuple[int, ...] | None] = {}  # how products are best divided, by signature
        self.signatures: dict[int, tuple[object, dict[str, Any], DeviceOp]] = {}  # by id of the op, which it keeps

    def comes_after(self, op: DeviceOp, before: DeviceOp) -> None:
        """What the op before has written to device memory takes longer to read."""
        fresh = [side for side, access in enumerate(op.accesses()[:-1]) if access.buffer == before.op.out.buffer]
        if fresh:
            fields = _fields(self.plan, op) | {"fresh": fresh[0]}
            self.signatures[id(op)] = (repr(fields), fields, op)

    def signature(self, op: DeviceOp) -> object:
        """Equal for ops that are equal as far as the clock goes."""
        return self._known(op)[0]

    def times(self, op: DeviceOp, choices: Sequence[Choice]) -> list[float]:
        key, fields, _ = self._known(op)
        missing = [choice for choice in dict.fromkeys(choices) if (key, choice) not in self.asked]
        if missing:
            if OPS[op.op.name].kind in TIMED:
                steps = [_step(fields, *choice) for choice in missing]
                found = _C.time_of_steps(steps, [_fresh(fields, held) for _, held in missing])
            else:
                found = [self._moved(op, held) for _, held in missing]
            self.asked.update(((key, choice), time) for choice, time in zip(missing, found, strict=True))
        return [self.asked[key, choice] for choice in choices]

    def time(self, op: DeviceOp, slices: Sequence[int], held: tuple[bool, ...]) -> float:
        return self.times(op, [(tuple(slices), held)])[0]

    def _known(self, op: DeviceOp) -> tuple[object, dict[str, Any], DeviceOp]:
        found = self.signatures.get(id(op))
        if found is None:
            fields = _fields(self.plan, op)
            found = self.signatures[id(op)] = (repr(fields), fields, op)
        return found

    def _moved(self, op: DeviceOp, held: tuple[bool, ...]) -> float:
        """Ops that follow indices, sort and the like: device memory at its best."""
        sizes = (self.plan.layouts[access.buffer].device_bytes() for access in op.accesses())
        points = prod(op.counts) * 4
        bytes_ = sum(min(size, points) for size, in_lx in zip(sizes, held, strict=True) if not in_lx)
        return bytes_ / description.constants()["dram_gb_per_s"] / 1000


def _fields(plan: Plan, op: DeviceOp) -> dict[str, Any]:
    """A step of the card without its division; ``sides`` are the operands in the order of the op's sides."""
    row = OPS[op.op.name]
    accesses = op.accesses()
    sides = []
    for access, side, strides in zip(accesses, op.sides, byte_strides(plan, op), strict=True):
        operand = {"format": plan.layouts[access.buffer].device_dtype.name, "strides": strides}
        sides.append(operand | ({"stick": side.stick} if side.stick >= 0 else {}))
    moves = op.op.name == "copy" and len(sides) == 2 and sides[0]["format"] == sides[1]["format"]
    fields: dict[str, Any] = {
        "op": op.op.name if moves or op.op.name == "restickify" else OPCODES.get(row.kind, row.kind),
        "extents": op.counts,
        "sides": sides,
        "ins": [isinstance(each, Access) for each in op.op.ins],
    }
    if row.function and not moves:
        fields["function"] = row.function
    if row.cost == "special":
        fields["special"] = True
    if row.kind == "reduction":
        fields["reduced"] = op.reduced
    if row.kind == "attention":
        fields["constants"] = [1.0, *op.parameters[1:]]
    return fields


def _step(fields: dict[str, Any], slices: tuple[int, ...], held: tuple[bool, ...]) -> dict[str, Any]:
    placed = [
        {**side, "lx": 0} if in_lx else {**side, "argument": i}
        for i, (side, in_lx) in enumerate(zip(fields["sides"], held, strict=True))
    ]
    given = iter(placed[:-1])
    ins = [next(given) if is_access else {"value": 1.0, "format": "IEEE_FP32"} for is_access in fields["ins"]]
    step = {key: value for key, value in fields.items() if key not in ("sides", "ins", "fresh")}
    return step | {"slices": list(slices), "operands": [placed[-1], *ins]}


def _fresh(fields: dict[str, Any], held: tuple[bool, ...]) -> int:
    """Which operand of the step was written just before, if that is in device memory."""
    side = fields.get("fresh", -1)
    if side < 0 or held[side]:
        return -1
    return 1 + [i for i, is_access in enumerate(fields["ins"]) if is_access][side]
