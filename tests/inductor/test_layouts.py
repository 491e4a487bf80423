"""Layouts inside a kernel that the clock chooses: faster than those of the rules, and the same values."""

import pytest
import torch

from torch_spyre import timing
from torch_spyre._inductor import compiler, config


def turned_product(x, y):
    return (x * 2).t() @ (y * 3).t()


def permuted_product(a, b):
    return (a.permute(2, 0, 1) * 2) @ b


CASES = {
    "turned": (turned_product, [(2048, 512), (1024, 2048)]),
    "permuted": (permuted_product, [(512, 128, 16), (16, 128, 256)]),
}


def run(function, shapes, **settings):
    torch._dynamo.reset()
    torch.manual_seed(0)
    args = [torch.randn(shape).half().to("spyre") for shape in shapes]
    with config.patch(**settings), torch.spyre.fallback("error"), timing.record() as found:
        result = torch.compile(function, fullgraph=True)(*args).cpu()
    return result, found.milliseconds


@pytest.mark.parametrize(("function", "shapes"), CASES.values(), ids=CASES)
def test_chosen_layouts_are_faster_and_change_nothing(function, shapes, monkeypatch):
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")
    chosen, fast = run(function, shapes)
    assert torch.equal(chosen, run(function, shapes, planning="op_by_op")[0])
    monkeypatch.setattr(compiler, "choose_layouts", lambda plan: [])
    by_rule, slow = run(function, shapes)
    assert torch.equal(chosen, by_rule)
    assert fast < slow


def test_rules_are_kept_where_nothing_is_gained(monkeypatch):
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")
    tried = []
    choose = compiler.choose_layouts
    monkeypatch.setattr(compiler, "choose_layouts", lambda plan: tried.append(choose(plan)) or tried[-1])
    run(lambda x, y: torch.relu(x @ y), [(128, 128), (128, 128)])
    assert tried == [[]]
