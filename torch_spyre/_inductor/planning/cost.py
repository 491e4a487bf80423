"""What the clock says about one op of a plan: how it is divided, and which of its operands lie in LX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from ... import _C
from ...card import description
from ...ir.step import compute_step
from ...kernel_types import Constant, Operand, Step
from ..layout.device_ir import DeviceOp, Plan
from ..loop_ir import Access
from .slicing_limits import byte_strides

# (slices, which of the operands lie in LX, the output last)
Choice = tuple[tuple[int, ...], tuple[bool, ...]]
_ANY_CONSTANT: Constant = {"value": 1.0, "format": "IEEE_FP32"}


class Costs:
    """Times in microseconds, each asked for once: ops of equal layers are equal."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.asked: dict[tuple[object, Choice], float] = {}
        self.best_products: dict[object, tuple[int, ...] | None] = {}  # how products are best divided, by signature
        self.templates: dict[int, tuple[object, _Template, DeviceOp]] = {}  # by id of the op, which it keeps

    def comes_after(self, op: DeviceOp, before: DeviceOp) -> None:
        """What the op before has written to device memory takes longer to read."""
        fresh = [
            number for number, access in enumerate(op.accesses()[:-1]) if access.buffer == before.loop_op.out.buffer
        ]
        if fresh:
            self._remember(op, _template(self.plan, op, fresh[0]))

    def signature(self, op: DeviceOp) -> object:
        """Equal for ops that are equal as far as the clock goes."""
        return self._known(op)[0]

    def times(self, op: DeviceOp, choices: Sequence[Choice]) -> list[float]:
        key, template, _ = self._known(op)
        missing = [choice for choice in dict.fromkeys(choices) if (key, choice) not in self.asked]
        if missing:
            if op.loop_op.row.is_dense:
                steps = [template.placed(*choice) for choice in missing]
                found = _C.time_of_steps(steps, [template.fresh_position(in_lx) for _, in_lx in missing])
            else:
                found = [self._moved(op, in_lx) for _, in_lx in missing]
            self.asked.update(((key, choice), time) for choice, time in zip(missing, found, strict=True))
        return [self.asked[key, choice] for choice in choices]

    def time(self, op: DeviceOp, slices: Sequence[int], in_lx: tuple[bool, ...]) -> float:
        return self.times(op, [(tuple(slices), in_lx)])[0]

    def _known(self, op: DeviceOp) -> tuple[object, _Template, DeviceOp]:
        return self.templates.get(id(op)) or self._remember(op, _template(self.plan, op))

    def _remember(self, op: DeviceOp, template: _Template) -> tuple[object, _Template, DeviceOp]:
        found = self.templates[id(op)] = (repr(template), template, op)
        return found

    def _moved(self, op: DeviceOp, in_lx: tuple[bool, ...]) -> float:
        """Ops that follow indices, sort and the like: device memory at its best."""
        sizes = (self.plan.layouts[access.buffer].device_bytes() for access in op.accesses())
        points = prod(op.counts) * 4
        bytes_ = sum(min(size, points) for size, is_in_lx in zip(sizes, in_lx, strict=True) if not is_in_lx)
        return bytes_ / description.constants()["dram_gb_per_s"] / 1000


@dataclass(frozen=True)
class _Template:
    """The step of an op without its division, and without the places of its operands."""

    step: Step
    positions: list[int]  # of the op's operands among those of the step, which begins with the output
    fresh: int = -1  # the operand that the op before has written; -1: none

    def placed(self, slices: tuple[int, ...], in_lx: tuple[bool, ...]) -> Step:
        operands = list(self.step["operands"])
        for number, (position, is_in_lx) in enumerate(zip(self.positions, in_lx, strict=True)):
            operand = cast(Operand, operands[position])
            operands[position] = {**operand, "lx": 0} if is_in_lx else {**operand, "argument": number}
        return {**self.step, "slices": list(slices), "operands": operands}

    def fresh_position(self, in_lx: tuple[bool, ...]) -> int:
        """Which operand of the step was written just before, if that is in device memory."""
        return -1 if self.fresh < 0 or in_lx[self.fresh] else self.positions[self.fresh]


def _template(plan: Plan, op: DeviceOp, fresh: int = -1) -> _Template:
    walked: list[Operand] = []
    for access, coordinates, strides in zip(op.accesses(), op.operands, byte_strides(plan, op), strict=True):
        operand: Operand = {"format": plan.layouts[access.buffer].device_dtype.name, "strides": strides}
        if coordinates.stick >= 0:
            operand["stick"] = coordinates.stick
        walked.append(operand)
    read = iter(walked[:-1])
    inputs = [next(read) if isinstance(each, Access) else _ANY_CONSTANT for each in op.loop_op.ins]
    # The time of an op does not depend on its parameters, except on whether attention is causal.
    constants = [1.0, *cast(Sequence[float], op.parameters[1:])] if op.loop_op.row.is_attention else []
    step = compute_step(op.loop_op.row, op.counts, (), [walked[-1], *inputs], reduced=op.reduced, constants=constants)
    positions = [1 + i for i, each in enumerate(op.loop_op.ins) if isinstance(each, Access)]
    return _Template(step, [*positions, 0], fresh)
