"""Kernels before and after one stage of the pipeline."""

from typing import Any

from expecttest import assert_expected_inline

from tests.passes.loop_text import read
from torch_spyre._inductor import conditions, pipeline
from torch_spyre._inductor.layout.device_ir import Plan, dense_layout
from torch_spyre._inductor.loop_ir import Kernel

SPAN = 256 * 2**20


def plan_of(kernel: Kernel | str, cores: int = 4, layouts: dict[str, Any] | None = None, **more: Any) -> Plan:
    """The plan that the pipeline begins with: inputs in their default layouts, unless others are given."""
    kernel = read(kernel) if isinstance(kernel, str) else kernel
    arguments = [*kernel.inputs(), *kernel.outputs()]
    given = {each.name: dense_layout(each) for each in kernel.inputs()} | (layouts or {})
    fields = {"offsets": {}, "span": SPAN, "arguments": {each.name: i for i, each in enumerate(arguments)}} | more
    return Plan(kernel, layouts=given, cores=cores, **fields)


def stage_of(name: str) -> pipeline.Stage:
    return next(stage for _, stage in pipeline.walk() if stage.name == name)


def passed(name: str, plan: Plan) -> Plan:
    """The plan after one pass, verified before and after it."""
    stage = stage_of(name)
    conditions.verify(plan, f"before {name}")
    conditions.check(plan, stage.needs, f"before {name}")
    stage.apply(plan)
    conditions.verify(plan, f"after {name}")
    conditions.check(plan, stage.gives, f"after {name}")
    return plan


def plan_before(name: str, plan: Plan) -> Plan:
    """The plan after all passes before the one of this name. Explorations go on with the kernel as it is."""
    for _, stage in pipeline.walk():
        if stage.name == name:
            return plan
        if isinstance(stage, pipeline.LoopPass) and stage.when.holds():
            passed(stage.name, plan)
    raise KeyError(name)


def expect(actual: object, expected: str) -> None:
    """Compares a printed IR with the text in the test; EXPECTTEST_ACCEPT=1 writes it there."""
    lines = actual if isinstance(actual, list) else [actual]
    assert_expected_inline("\n".join(map(str, lines)) + "\n", expected, skip=1)


def ops_of(kernel: Kernel) -> str:
    """The ops alone."""
    return "\n".join(line for line in str(kernel).split("\n") if " = " in line)


def device_ops_of(plan: Plan) -> list[str]:
    """Every device op, and under it its operands: the first coordinates, and the steps along every loop."""
    found = []
    for op in plan.device_ops:
        found.append(f"{op.loop_op.name} over {op.counts}")
        found += [f"  {a.buffer} at {each}" for a, each in zip(op.accesses(), op.operands, strict=True)]
    return found


def layouts_of(plan: Plan) -> list[str]:
    """Device sizes, and what a step along each is on the host."""
    return [f"{name}: {list(each.device_size)} by {list(each.stride_map)}" for name, each in plan.layouts.items()]
