"""What passes need and promise: conditions of a plan by name, each with a check that says what is wrong.

Checks run with ``TORCH_SPYRE_VERIFY=1``. They are about the compiler itself: a user's program cannot break one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from ..ir.op_spec import verify_all
from .layout.device_ir import Plan


class BrokenPromise(AssertionError):
    """A pass left something that it promised not to leave."""


@dataclass(frozen=True)
class Condition:
    """``faults`` gives a sentence for everything that breaks it."""

    text: str
    faults: Callable[[Plan], Iterator[str]]


def check(plan: Plan, names: Sequence[str], where: str) -> None:
    """Raises BrokenPromise naming the kernel, the place in the pipeline and the first fault."""
    for name in names:
        for fault in CONDITIONS[name].faults(plan):
            raise BrokenPromise(f"{plan.kernel.name}, {where}: {fault}; expected: {CONDITIONS[name].text}")


def _aliased(plan: Plan) -> Iterator[str]:
    for op in plan.kernel.ops:
        for access in op.accesses():
            first = plan.storages.get(access.buffer, access.buffer)
            if first != access.buffer:
                yield f"{op.name} uses {access.buffer}, which lies in the storage of {first}"


def _dead(plan: Plan) -> Iterator[str]:
    needed = {name for name, buffer in plan.kernel.buffers.items() if buffer.kind != "internal"}
    for op in reversed(plan.kernel.ops):
        if op.out.buffer not in needed:
            yield f"nothing reads {op.out.buffer}, which {op.name} writes"
        needed.update(op.reads())


def _without_layout(plan: Plan) -> Iterator[str]:
    for op in plan.kernel.ops:
        for access in op.accesses():
            if access.buffer not in plan.layouts:
                yield f"{access.buffer} of {op.name} has no layout"


def _wrongly_lifted(plan: Plan) -> Iterator[str]:
    for op in plan.device_ops:
        accesses = op.accesses()
        if len(accesses) != len(op.operands):
            yield f"{op.loop_op.name} has {len(accesses)} operands and {len(op.operands)} coordinates"
        for access, operand in zip(accesses, op.operands, strict=False):
            rank = len(plan.layouts[access.buffer].device_size)
            if len(operand.constant) != rank or any(len(row) != rank for row in operand.steps):
                yield f"the coordinates of {access.buffer} in {op.loop_op.name} do not have {rank} dimensions"
            if len(operand.steps) != len(op.counts):
                counted = f"{len(operand.steps)} of {len(op.counts)} loops"
                yield f"{access.buffer} in {op.loop_op.name} has steps along {counted}"


def _undivided(plan: Plan) -> Iterator[str]:
    for op in plan.device_ops:
        if len(op.slices) != len(op.counts):
            yield f"{op.loop_op.name} over {op.counts} has the slices {op.slices}"
        elif prod(op.slices) > plan.cores:
            yield f"{op.loop_op.name} over {op.counts} is divided over {prod(op.slices)} of {plan.cores} cores"


def _unplaced(plan: Plan) -> Iterator[str]:
    for op in plan.device_ops:
        for access in op.accesses():
            places = (access.buffer in plan.lx, access.buffer in plan.pool, access.buffer in plan.arguments)
            if sum(places) != 1:
                yield f"{access.buffer} of {op.loop_op.name} has {sum(places)} places"


def _wrong_specs(plan: Plan) -> Iterator[str]:
    try:
        verify_all(plan.specs)
    except ValueError as error:
        yield str(error)


CONDITIONS = {
    "no aliases": Condition("arguments on one storage are one buffer", _aliased),
    "no dead ops": Condition("every op writes something that is used", _dead),
    "layouts": Condition("every buffer that an op uses has a layout", _without_layout),
    "device ops": Condition("every device op has coordinates for each operand", _wrongly_lifted),
    "divided": Condition("every device op says how many cores share each loop, and there are as many", _undivided),
    "placed": Condition("every buffer is an argument, in LX or in the kernel's own memory", _unplaced),
    "specs": Condition("the OpSpecs are valid", _wrong_specs),
}
