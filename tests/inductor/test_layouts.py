"""Layouts inside a kernel that the clock chooses: faster than those of the rules, and the same values."""

import pytest
import torch

from torch_spyre import timing
from torch_spyre._inductor import config
from torch_spyre._inductor.planning import choose_layouts


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
    monkeypatch.setattr(choose_layouts, "other_layouts", lambda plan: [])
    by_rule, slow = run(function, shapes)
    assert torch.equal(chosen, by_rule)
    assert fast < slow


def test_rules_are_kept_where_nothing_is_gained(monkeypatch):
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")
    tried = []
    search = choose_layouts.other_layouts
    monkeypatch.setattr(choose_layouts, "other_layouts", lambda plan: tried.append(search(plan)) or tried[-1])
    run(lambda x, y: torch.relu((x * 2) @ y), [(4, 128, 128), (4, 128, 128)])
    assert tried == [[]]


@pytest.mark.parametrize(("dims", "folded"), [((2, 0, 1), (0, 2)), ((1, 0, 2), (0, 2)), ((0, 2, 1), (1, 2))])
def test_sums_keep_their_order(dims, folded, monkeypatch):
    """A fold over several dimensions goes through memory as they lie: it would end in other last bits."""
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")

    def product_and_sum(a, b):
        turned = a.permute(dims) * 2
        return torch.cat([(turned @ b).float().flatten(), turned.float().sum(folded)])

    sizes = [(16, 256, 128)[dim] for dim in dims]
    shapes = [(16, 256, 128), (sizes[0], sizes[2], 64)]
    chosen, _ = run(product_and_sum, shapes)
    monkeypatch.setattr(choose_layouts, "other_layouts", lambda plan: [])
    assert torch.equal(chosen, run(product_and_sum, shapes)[0])


def test_an_order_that_is_asked_for_stays(monkeypatch):
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")

    def asked(x, y, z):
        return turned_product(x, y), torch.ops.spyre.restickify(z, 0)

    shapes = (2048, 512), (1024, 2048), (256, 512)
    x, y, z = (torch.ones(shape, dtype=torch.float16, device="spyre") for shape in shapes)
    torch._dynamo.reset()
    _, turned = torch.compile(asked, fullgraph=True)(x, y, z)
    assert turned.device_tensor_layout() == torch.ops.spyre.restickify(z, 0).device_tensor_layout()
    assert turned.device_tensor_layout() != z.device_tensor_layout()
