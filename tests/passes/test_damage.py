"""Kernels of real programs, damaged in one field: refused by a rule, or another program that is valid to the end.

Nothing else may happen: no pass may stumble over what the verifier let through.
"""

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.passes.stages import passed, plan_before, plan_of
from torch_spyre._inductor import config, pipeline
from torch_spyre._inductor.errors import Unsupported
from torch_spyre._inductor.fx.lower import lower_graph
from torch_spyre._inductor.layout.coordinates import Coordinates
from torch_spyre._inductor.layout.device_ir import Plan
from torch_spyre._inductor.loop_ir import Access, Buffer, Kernel, LoopOp
from torch_spyre._inductor.verification import InvalidIR


def attention(q, k, v):
    scores = torch.exp(torch.bmm(q, k.transpose(1, 2)) * 0.125)
    return (torch.bmm(scores / scores.sum(-1, keepdim=True), v),)


def embedding(table, rows):
    return torch.cumsum(table[rows].clamp(0.0, 1.0), -1).amax(-1), rows + torch.arange(24)


def half(*size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.float16)


PROGRAMS = {
    "attention": (attention, [half(2, 32, 64)] * 3),
    "embedding": (embedding, [half(96, 128), torch.zeros(24, dtype=torch.int64)]),
}


def kernel_of(name: str) -> Kernel:
    function, args = PROGRAMS[name]
    return lower_graph(make_fx(function, tracing_mode="fake")(*args).graph, name)


def others(value: Any) -> Iterator[Any]:
    """A field with one thing changed."""
    if isinstance(value, bool) or value is None or isinstance(value, dict):
        return
    if isinstance(value, int):
        yield from (value - 1, value + 1)
    elif isinstance(value, torch.dtype):
        yield torch.int32 if value.is_floating_point else torch.float32
    elif isinstance(value, str):
        yield value + "_"
    elif isinstance(value, tuple | list):
        kind = type(value)
        yield kind(value[:-1])
        for at, each in enumerate(value):
            yield from (kind([*value[:at], other, *value[at + 1 :]]) for other in others(each))
    elif isinstance(value, Access | Buffer | LoopOp):
        for name in vars(value):
            if name not in ("source", "hints", "checked"):
                yield from (replace(value, **{name: other}) for other in others(getattr(value, name)))


def damaged_kernels(kernel: Kernel) -> Iterator[Kernel]:
    for at, op in enumerate(kernel.ops):
        for other in others(op):
            yield Kernel(kernel.name, dict(kernel.buffers), [*kernel.ops[:at], other, *kernel.ops[at + 1 :]])
    for at in range(len(kernel.ops)):
        yield Kernel(kernel.name, dict(kernel.buffers), kernel.ops[:at] + kernel.ops[at + 1 :])
    for name, buffer in kernel.buffers.items():
        for changed in others(buffer):
            yield Kernel(kernel.name, kernel.buffers | {name: changed}, list(kernel.ops))


SHARE = pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])


@SHARE
@pytest.mark.parametrize("name", PROGRAMS)
def test_damaged_loop_ops_are_refused_or_valid_to_the_end(name, every):
    whole = plan_of(kernel_of(name))
    ends: Counter[str] = Counter()
    with config.patch(verify=True, lx_planning=False):
        for kernel in islice(damaged_kernels(whole.kernel), 0, None, every):
            try:
                pipeline.run(whole.of(deepcopy(kernel), dict(whole.layouts)))
                ends["valid"] += 1
            except InvalidIR as refusal:
                assert "after lowering" in str(refusal)
                ends["refused"] += 1
            except Unsupported:
                ends["valid"] += 1
    assert ends["refused"] > 2 * ends["valid"], ends


def damaged_plans(plan: Plan) -> Iterator[Plan]:
    for at, op in enumerate(plan.device_ops):
        for name in ("counts", "origins", "reduced", "slices", "parameters", "across"):
            for other in others(getattr(op, name)):
                yield _with_op(plan, at, **{name: other})
        for position, operand in enumerate(op.operands):
            for changed in _other_operands(operand):
                operands = [*op.operands[:position], changed, *op.operands[position + 1 :]]
                yield _with_op(plan, at, operands=operands)
    for name, (address, there) in plan.lx.items():
        for origin in others(there.origin):
            yield replace(plan, lx=plan.lx | {name: (address, replace(there, origin=origin))})
        for size in others(there.size):
            yield replace(plan, lx=plan.lx | {name: (address, replace(there, size=size))})
    for field in ("lx", "pool", "layouts"):
        for name in getattr(plan, field):
            yield replace(plan, **{field: {each: v for each, v in getattr(plan, field).items() if each != name}})


def _with_op(plan: Plan, at: int, **fields: Any) -> Plan:
    return replace(
        plan, device_ops=[*plan.device_ops[:at], replace(plan.device_ops[at], **fields), *plan.device_ops[at + 1 :]]
    )


def _other_operands(operand: Coordinates) -> Iterator[Coordinates]:
    for at, (dim, step, along_sticks) in enumerate(operand.jumps):
        for changed in others((dim, step)):
            if len(changed) == 2:
                yield replace(operand, jumps=[*operand.jumps[:at], (*changed, along_sticks), *operand.jumps[at + 1 :]])
    for name, value in vars(operand).items():
        if name == "jumps":
            continue
        yield from (replace(operand, **{name: other}) for other in others(value))


@SHARE
@pytest.mark.parametrize("name", PROGRAMS)
def test_damaged_plans_are_refused_or_valid_to_the_end(name, every):
    whole = plan_before("build_specs", plan_of(kernel_of(name)))
    ends: Counter[str] = Counter()
    for plan in islice(damaged_plans(whole), 0, None, every):
        try:
            passed("build_specs", deepcopy(plan))
            ends["valid"] += 1
        except InvalidIR:
            ends["refused"] += 1
    assert ends["refused"] > 9 * ends["valid"], ends
