"""What a change would save: the program is timed with the cause removed."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any, TypedDict

import torch

from .. import _C
from .._inductor.compiler import compile_kernel
from .._inductor.errors import Unsupported
from .._inductor.loop_ir import from_json
from ..execution.launches import Launch
from ..kernel_types import Step
from . import run_data
from .watch import Watched

LEAST_SHARE = 0.01  # of a kernel's time: changes that save less are no advice
MOST_STEPS = 300  # of a kernel that is planned anew for each layout that is tried


class Advice(TypedDict, total=False):
    advice: str
    saving_us: float


def launch_of(watched: Watched, number: int) -> Launch:
    """The first launch of the kernel of this number: kernels are numbered as they were first launched."""
    plans: dict[int, Launch] = {}
    for each in watched.launches:
        plans.setdefault(id(each.launch.plan), each.launch)
    return list(plans.values())[number]


def other_layout(run: run_data.RunData, watched: Watched, number: int, buffer: run_data.Buffer, count: int) -> Advice:
    """Another layout of an argument with which the kernel, planned anew, is fastest."""
    launch = launch_of(watched, number)
    if len(buffer["size"]) < 2 or len(run["kernels"][number]["steps"]) > MOST_STEPS:
        return {}
    before, best, chosen = run["kernels"][number]["us"], float("inf"), []
    rank = len(buffer["size"])
    for stick in range(rank):
        order = [dim for dim in range(rank) if dim != stick] + [stick]
        us = _time_with(launch, buffer, order)
        if us < best:
            best, chosen = us, order
    if before - best < LEAST_SHARE * before:
        return {}
    layout = f"SpyreTensorLayout({buffer['size']}, {buffer['stride']}, torch.{buffer['dtype']}, {chosen})"
    return {
        "advice": f"Move the argument {buffer['dtype']}{buffer['size']} with to('spyre', device_layout={layout}).",
        "saving_us": (before - best) * count,
    }


def _time_with(launch: Launch, buffer: run_data.Buffer, order: list[int]) -> float:
    """Of the kernel with an argument in the layout that puts its dimensions in this order."""
    signature = list(launch.signature)
    if buffer["address"] >= len(signature):
        return float("inf")
    dtype = getattr(torch, buffer["dtype"])
    layout = _C.SpyreTensorLayout(buffer["size"], buffer["stride"], dtype, order)
    signature[buffer["address"]] = replace(signature[buffer["address"]], layout=layout)
    try:
        code = compile_kernel(from_json(launch.text), tuple(signature))
        return sum(time["us"] for time in _C.prepare_kernel(code).step_times())
    except (Unsupported, RuntimeError, ValueError):
        return float("inf")


def savings_in_lx(watched: Watched, number: int) -> dict[int, float]:
    """By buffer of a kernel that goes through device memory: what its steps would save if it were in LX.

    The clock is asked about each step that uses it, as it is and with that operand in LX.
    """
    launch = launch_of(watched, number)
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
