"""What a change would save: the kernel is planned anew with the cause removed, and timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import Any, TypedDict

import torch

from .. import _C
from .._inductor import config, pipeline
from .._inductor.compiler import compile_kernel
from .._inductor.errors import Unsupported
from .._inductor.layout.device_ir import Plan
from .._inductor.loop_ir import Kernel, from_json
from .._inductor.planning.cost import Costs
from .._inductor.planning.divide_work import divide_work
from .._inductor.planning.divisions import divisions
from .._inductor.verification import InvalidIR
from ..execution.launches import Launch
from ..ir.signature import Argument
from ..kernel_types import Step
from . import run_data

LEAST_SHARE = 0.01  # of a kernel's time: changes that save less are no advice
MOST_DIVISIONS = 3  # that a kernel is timed with
MOST_STEPS = 300  # of a kernel that is planned anew for each layout that is tried


_FOLDED = {
    "scan": 1,
    "topk": 1,
    "attention": 2,
    "paged_attention": 3,
}  # last loops of kinds of ops, which cores cannot share


class Advice(TypedDict, total=False):
    advice: str
    saving_us: float


@dataclass(frozen=True)
class Use:
    """A kernel that has a tensor as its argument."""

    kernel: run_data.Kernel
    launch: Launch
    argument: int
    count: int  # of its launches


def other_layout(buffer: run_data.Buffer, uses: Sequence[Use]) -> Advice:
    """Another layout of a tensor with which all kernels that have it as an argument, planned anew, are fastest."""
    rank = len(buffer["size"])
    if rank < 2 or any(len(use.kernel["steps"]) > MOST_STEPS for use in uses):
        return {}
    before, best, chosen = sum(use.kernel["us"] * use.count for use in uses), float("inf"), []
    for stick in range(rank):
        order = [dim for dim in range(rank) if dim != stick] + [stick]
        us = sum(_time_with(use.launch, use.argument, buffer, order) * use.count for use in uses)
        if us < best:
            best, chosen = us, order
    if before - best < LEAST_SHARE * before:
        return {}
    layout = f"SpyreTensorLayout({buffer['size']}, {buffer['stride']}, torch.{buffer['dtype']}, {chosen})"
    return {
        "advice": f"Move the argument {buffer['dtype']}{buffer['size']} with to('spyre', device_layout={layout}).",
        "saving_us": before - best,
    }


def _time_with(launch: Launch, argument: int, buffer: run_data.Buffer, order: list[int]) -> float:
    """Of the kernel with an argument in the layout that puts its dimensions in this order."""
    signature = list(launch.signature)
    dtype = getattr(torch, buffer["dtype"])
    layout = _C.SpyreTensorLayout(buffer["size"], buffer["stride"], dtype, order)
    signature[argument] = replace(signature[argument], layout=layout)
    return _time_of(from_json(launch.text), tuple(signature))


@dataclass(frozen=True)
class Divisions:
    """How else an op divides over cores: ways to use more of them, and the time with the fastest of those."""

    count: int
    us: float
    slices: tuple[int, ...]
    alone: bool  # timed by itself, and not with its kernel


@lru_cache(4)
def _parsed(text: str) -> Kernel:
    """To be copied before it is compiled: a large kernel is asked about several ops."""
    return from_json(text)


def more_cores(launch: Launch, loop_op: int) -> Divisions:
    """The kernel with an op divided over more cores than in its plan; the op alone, where the kernel is large."""
    kernel, signature, alone = _parsed(launch.text), launch.signature, False
    if len(kernel.ops) > MOST_STEPS:
        kernel, alone = kernel.part(loop_op, loop_op), True
        found = _signature_of_part(launch, kernel)
        if found is None:
            return Divisions(0, float("inf"), (), alone)
        signature = found
    expected: dict[tuple[int, ...], float] = {}

    def listed(plan: Plan) -> None:
        divide_work(plan)
        costs = Costs(plan)
        for op in plan.device_ops:
            if op.loop_op.position == loop_op:
                in_memory = (False,) * len(op.operands)
                kept = len(op.counts) - _FOLDED.get(op.loop_op.row.kind, 0)
                others = (
                    each
                    for each in divisions(plan, op, any_number=True)
                    if prod(each) > prod(op.slices) and prod(each[kept:]) == 1
                )
                expected.update({each: costs.time(op, each, in_memory) for each in others})

    _time_divided(kernel, signature, listed)
    best = Divisions(len(expected), float("inf"), (), alone)
    for slices in sorted(expected, key=lambda each: expected[each])[:MOST_DIVISIONS]:
        us = _time_divided(kernel, signature, partial(_divided_as, loop_op, slices))
        if us < best.us:
            best = Divisions(len(expected), us, slices, alone)
    return best


def _divided_as(loop_op: int, slices: tuple[int, ...], plan: Plan) -> None:
    """As always, but for one op."""
    divide_work(plan)
    for op in plan.device_ops:
        if op.loop_op.position == loop_op and slices in divisions(plan, op, any_number=True):
            op.slices = list(slices)


def _time_divided(kernel: Kernel, signature: tuple[Argument, ...], divide: Callable[[Plan], None]) -> float:
    """A division that breaks a rule of its op is none: what the planner made is trusted, what is tried here is not."""
    with pipeline.replaced("divide_work", divide), config.patch(verify=True):
        return _time_of(deepcopy(kernel), signature)


def _signature_of_part(launch: Launch, kernel: Kernel) -> tuple[Argument, ...] | None:
    """Its arguments as they lie in the whole kernel; None if the plan has other buffers there."""
    known = {each["name"]: each["layout"] for each in launch.code["plan"]["buffers"]}
    arguments = []
    for position, buffer in enumerate(kernel.inputs()):
        if buffer.name not in known:
            return None
        layout = known[buffer.name]
        format = _C.DataFormats.__members__[layout["format"]]
        made = _C.SpyreTensorLayout(layout["device_size"], layout["stride_map"], format)
        arguments.append(Argument(made, 0, position))
    return tuple(arguments)


def with_all_cores(launch: Launch) -> float:
    """Microseconds of the kernel on all cores of the card."""
    with config.patch(sencores=_C.card_cores(-1)):
        return _time_of(from_json(launch.text), launch.signature)


def without_hints(launch: Launch) -> float:
    """Microseconds of the kernel as the planner divides it by itself; infinite if it has no hints."""
    kernel = from_json(launch.text)
    if not any(op.hints for op in kernel.ops):
        return float("inf")
    for op in kernel.ops:
        op.hints = {}
    return _time_of(kernel, launch.signature)


def _time_of(kernel: Kernel, signature: tuple[Argument, ...]) -> float:
    """Infinite where it cannot be planned."""
    try:
        code = compile_kernel(kernel, signature)
        return sum(time["us"] for time in _C.prepare_kernel(code).step_times())
    except (Unsupported, InvalidIR, RuntimeError, ValueError):
        return float("inf")


def savings_in_lx(launch: Launch) -> dict[int, float]:
    """By buffer of a kernel that goes through device memory: what its steps would save if it were in LX.

    The clock is asked about each step that uses it, as it is and with that operand in LX.
    """
    plan, steps = launch.code["plan"], _compute_steps(launch)
    pool = {i: buffer for i, buffer in enumerate(plan["buffers"]) if buffer["place"] == "pool"}
    asked: list[tuple[int, int]] = []  # buffer, step
    for at, step in enumerate(steps):
        used = {*plan["reads"][step["spec"]], plan["writes"][step["spec"]]}
        asked += [(buffer, at) for buffer in used & pool.keys()]
    found: dict[int, float] = dict.fromkeys(pool, 0.0)
    if not asked:
        return {}
    argument = len(launch.code["arguments"])
    now = _C.time_of_steps([steps[at] for _, at in asked])
    then = _C.time_of_steps([_in_lx(steps[at], pool[buffer], argument) for buffer, at in asked])
    for (buffer, _), before, after in zip(asked, now, then, strict=True):
        found[buffer] += max(before - after, 0.0)
    return found


def _compute_steps(launch: Launch) -> list[Step]:
    return [step for each in launch.code["steps"] if each["type"] == "Compute" for step in each["program"]["steps"]]


def _in_lx(step: Step, buffer: dict[str, Any], argument: int) -> Step:
    """The step with a buffer of the pool at the beginning of LX."""
    moved = deepcopy(step)
    end = buffer["address"] + buffer["bytes"]
    for operand in moved["operands"]:
        if "argument" in operand and operand["argument"] == argument and buffer["address"] <= operand["offset"] < end:
            del operand["argument"], operand["offset"]
            operand["lx"] = 0
    return moved
