"""Chains whose values have no room in LX run in tiles: the same results in less time, and what a tile makes stays."""

import pytest
import torch
import torch.nn.functional as F

from torch_spyre import timing
from torch_spyre._inductor import config, pipeline, spyre_hint
from torch_spyre._inductor.errors import Unsupported
from torch_spyre._inductor.layout.lift_ops import lift_ops
from torch_spyre._inductor.planning import tile_chains
from torch_spyre.ops.attention import written_out

LITTLE = "0.99"  # of LX is left to tiles on their way: 20 KB of each core for what stays


@pytest.fixture(autouse=True)
def little_lx(monkeypatch):
    monkeypatch.setenv("DXP_LX_FRAC_AVAIL", LITTLE)


def half(*shape):
    return torch.randn(shape).half().to("spyre")


def run(function, args, **settings):
    """What it makes, and the modelled time."""
    torch._dynamo.reset()
    with config.patch(**settings), torch.spyre.fallback("error"), timing.record() as found:
        result = torch.compile(function, fullgraph=True)(*args)
    return result.cpu(), found.milliseconds


def turns(steps) -> int:
    return sum(bool(step.get("turn")) for step in steps)


def softmax(x):
    return torch.softmax(x, -1)


def precise_softmax(x):
    return torch.softmax(x.float(), -1)


def norm_and_product(x, w):
    return F.gelu(F.layer_norm(x, x.shape[-1:]) @ w)


def attention(q, k, v):
    return written_out(q, k, v, None, False, 0.125, False)


def grouped_attention(q, k, v):
    return written_out(q, k, v, None, True, 0.125, True)


def values_late(x, w):
    """The values are made between the weights and their product."""
    weights = torch.softmax(x @ x.transpose(-1, -2), -1)
    return weights @ torch.relu(x * w)


def leaves_several(x, y):
    a = torch.exp(x - y)
    b = a * y
    return a.sum(-1, keepdim=True) + torch.tanh(b) * a


CHAINS = [
    (softmax, [(2048, 640)]),
    (softmax, [(3, 700, 512)]),
    (precise_softmax, [(1024, 512)]),
    (norm_and_product, [(2048, 256), (256, 512)]),
    (attention, [(1, 8, 512, 64)] * 3),
    (attention, [(1, 1, 1280, 64)] * 3),
    (attention, [(3, 4, 384, 64)] * 3),
    (grouped_attention, [(1, 32, 256, 64), (1, 8, 256, 64), (1, 8, 256, 64)]),
    (values_late, [(6, 512, 64), (512, 64)]),
    (leaves_several, [(1536, 1024)] * 2),
]


@pytest.mark.parametrize(("function", "shapes"), CHAINS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_tiles_change_the_time_and_not_a_bit(function, shapes, programs, monkeypatch):
    torch.manual_seed(0)
    args = [half(*shape) for shape in shapes]
    tiled, time = run(function, args)
    assert turns(programs.pop())
    with pipeline.replaced("tile_chains", lambda plan: [plan]):
        whole, longer = run(function, args)
    assert not turns(programs.pop())
    assert time < longer
    assert torch.equal(tiled, whole)
    assert torch.equal(run(function, args, lx_planning=False)[0], whole)
    assert torch.equal(run(function, args, sencores=7)[0], whole)


def test_scores_of_a_tile_stay_in_lx(programs):
    run(grouped_attention, [half(1, 32, 256, 64), half(1, 8, 256, 64), half(1, 8, 256, 64)])
    steps = programs.pop()
    products = [step["operands"] for step in steps if step["op"] == "matmul"]
    assert len(products) == 2 * (turns(steps) + 1) > 8
    assert all("lx" in scores[0] for scores in products[::2])
    assert all("lx" in scores[1] for scores in products[1::2])
    large = [o for step in steps for o in step["operands"] if "argument" in o and o["format"] == "IEEE_FP32"]
    assert not large, "scores went through device memory"


@pytest.mark.parametrize(
    "settings", [{"planning": "op_by_op"}, {"lx_planning": False}], ids=lambda each: str(next(iter(each)))
)
def test_where_nothing_is_planned_together_nothing_is_tiled(settings, programs):
    run(softmax, [half(2048, 640)], **settings)
    assert not any(map(turns, programs))


def test_whoever_has_hints_has_said_how_it_runs(programs):
    def hinted(x):
        with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 1}):
            return torch.softmax(x, -1)

    run(hinted, [half(2048, 640)])
    assert not turns(programs.pop())


def test_what_fits_is_left_whole(programs, monkeypatch):
    monkeypatch.setenv("DXP_LX_FRAC_AVAIL", "0.2")
    run(softmax, [half(2048, 640)])
    assert not turns(programs.pop())


def test_weights_that_every_tile_would_read_are_read_once(programs):
    """Two deep products, rows that do not fit: in tiles of rows they would read both weights again and again."""
    run(lambda x, w, v: (x @ w) @ v, [half(256, 2048), half(2048, 2048), half(2048, 2048)])
    assert not turns(programs.pop())


def test_gradients(programs):
    torch.manual_seed(0)
    q, k, v = (half(1, 4, 512, 64).requires_grad_() for _ in range(3))

    def gradients(**settings):
        torch._dynamo.reset()
        with config.patch(**settings), torch.spyre.fallback("error"):
            out = torch.compile(attention, fullgraph=True)(q, k, v)
            return [each.cpu() for each in torch.autograd.grad(out.float().square().sum(), (q, k, v))]

    tiled = gradients()
    assert any(map(turns, programs))
    for got, expected in zip(tiled, gradients(lx_planning=False), strict=True):
        assert torch.equal(got, expected)


def test_tiles_that_do_not_lie_on_the_card_are_given_up(programs):
    refusals = []

    def refusing(plan):
        lift_ops(plan)
        if any(op.tile_loops for op in plan.kernel.ops):
            refusals.append(plan)
            raise Unsupported("tiles inside sticks")

    x = half(2048, 640)
    with pipeline.replaced("lift_ops", refusing):
        got, _ = run(softmax, [x])
    assert refusals and not turns(programs.pop())
    assert torch.equal(got, run(softmax, [x])[0])


@pytest.mark.parametrize("cores", [1, 3, 32])
def test_sums_over_several_dimensions_keep_their_order(cores, programs, monkeypatch):
    """What is summed is made in tiles, whichever of its dimensions they cut."""
    torch.manual_seed(0)
    x = torch.randn(96, 64, 50).to("spyre")

    def spread(x):
        return torch.exp(x - 1).sum()

    monkeypatch.setattr(tile_chains, "WORTH", float("inf"))
    tiled, _ = run(spread, [x], sencores=cores)
    assert turns(programs.pop())
    with pipeline.replaced("tile_chains", lambda plan: [plan]):
        assert torch.equal(tiled, run(spread, [x], sencores=cores)[0])
