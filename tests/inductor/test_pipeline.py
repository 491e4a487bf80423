"""The list of stages: what the guide says of it, what stages promise, and other functions in their place."""

import re
from pathlib import Path

import pytest
import torch

from torch_spyre._inductor import config, pipeline
from torch_spyre._inductor.conditions import CONDITIONS
from torch_spyre._inductor.verification import InvalidIR

GUIDE = Path(__file__).parents[2] / "docs" / "compiler.md"


def test_the_guide_has_the_same_list():
    table = GUIDE.read_text().split("| stage | when |")[1].split("\n\n")[0]
    said = re.findall(r"^\| ((?:↳ )*)(\*\*)?`(\w+)`(?:\*\*)? \| ([^|]*) \|", table, re.MULTILINE)
    listed = [(len(depth.split()), name, when, bool(bold)) for depth, bold, name, when in said]
    assert listed == [
        (depth, stage.name, stage.when.text, isinstance(stage, pipeline.Exploration))
        for depth, stage in pipeline.walk()
    ]


def test_conditions_are_known():
    used = {name for _, stage in pipeline.walk() for name in (*stage.needs, *stage.gives)}
    assert used == set(CONDITIONS)


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


@pytest.fixture
def uncached(monkeypatch):
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")
    torch._dynamo.reset()


def run():
    torch.manual_seed(0)
    args = [torch.randn(2, 512, 64).half().to("spyre") for _ in range(3)]
    return torch.compile(attention)(*args).cpu()


@pytest.mark.parametrize("planning", ["together", "op_by_op"])
def test_every_stage_is_verified(planning, uncached, monkeypatch):
    seen = []
    monkeypatch.setattr(pipeline, "verify", lambda plan, where: seen.append(where))
    with config.patch(verify=True, planning=planning):
        run()
        passes = [
            stage.name for _, stage in pipeline.walk() if isinstance(stage, pipeline.LoopPass) and stage.when.holds()
        ]
    assert set(seen) == {f"after {name}" for name in ("lowering", *passes)}


def test_nothing_is_verified_unless_asked_for(uncached, monkeypatch, python):
    monkeypatch.setattr(pipeline, "verify", lambda plan, where: pytest.fail(where))
    with config.patch(verify=False):
        run()
    result = python("from torch_spyre._inductor import config; print(config.verify)", TORCH_SPYRE_VERIFY="")
    assert result.stdout == "False\n"


def test_verified_kernels_have_the_same_keys(uncached):
    keys = [config.save_config_portable(ignore_private_configs=False)]
    with config.patch(verify=not config.verify):
        keys.append(config.save_config_portable(ignore_private_configs=False))
    assert keys[0] == keys[1]


def test_a_broken_rule_is_named_with_the_line_of_the_program(uncached):
    def spoiled(kernel):
        kernel.ops[0].reduced = 0

    with (
        config.patch(verify=True),
        pipeline.replaced("dead_code", spoiled),
        pytest.raises(
            InvalidIR, match=r"after dead_code: matmul over .* line \d+, in attention\) folds 0 loops; the rule: an"
        ),
    ):
        run()


def test_a_broken_condition_is_named(uncached):
    with (
        config.patch(verify=True),
        pipeline.replaced("plan_memory", lambda plan: plan.lx.clear()),
        pytest.raises(InvalidIR, match=r"after plan_memory: .* has 0 places; the rule: every buffer is"),
    ):
        run()


def test_another_function_in_the_place_of_a_stage(uncached):
    seen = []
    original = next(stage.run for _, stage in pipeline.walk() if stage.name == "lift_ops")

    def watched(plan):
        seen.append(plan.kernel.name)
        original(plan)

    with pipeline.replaced("lift_ops", watched):
        run()
    assert seen
    with pytest.raises(KeyError, match="no stage 'lift_everything'"), pipeline.replaced("lift_everything", watched):
        pass
