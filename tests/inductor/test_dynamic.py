"""Sizes that change between calls: right results, whether code is made anew or not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree


@pytest.fixture(autouse=True)
def strict():
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.spyre.fallback("error"):
        yield


def host(tree):
    return pytree.tree_map(lambda v: v.cpu() if isinstance(v, torch.Tensor) else v, tree)


def check(compiled, function, *args):
    card = pytree.tree_map(lambda t: t.to("spyre") if isinstance(t, torch.Tensor) else t, args)
    torch.testing.assert_close(host(compiled(*card)), function(*args), rtol=1e-4, atol=1e-4)


def sizes_inside(x):
    """Sizes as numbers, as shapes of new tensors and as bounds of loops in kernels."""
    rows, columns = x.shape
    mask = torch.ones(rows, rows, device=x.device).tril()
    positions = torch.arange(columns, device=x.device)
    return mask @ x / rows + positions, x.reshape(-1, 1).expand(-1, 2).reshape(rows * 2, columns)


def sizes_out(x):
    return x.shape[0], x * 2, x.numel() + 1


def halves(x):
    return x[: x.shape[0] // 2] + 1, x[x.shape[0] // 2 :].sum(0)


def softmax(x):
    return F.softmax(x @ x.t(), dim=-1)


def padded(x):
    return F.pad(x, (0, -x.shape[1] % 8, 1, 0))


def joined(x):
    return torch.cat([x, x[:1], x.flip(0)]), torch.stack(x.unbind(0)[:2])


def in_place(x):
    y = x.clone()
    y[: x.shape[0] // 2] = x.shape[0]
    return y.add_(x.shape[1])


FUNCTIONS = [sizes_inside, sizes_out, halves, softmax, padded, joined, in_place]


@pytest.mark.parametrize("options", [{"dynamic": True}, {"dynamic": False}, {}], ids=["dynamic", "static", "automatic"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_sizes_that_change(function, options):
    compiled = torch.compile(function, fullgraph=True, **options)
    for rows, columns in ((4, 64), (6, 64), (7, 65), (2, 3)):
        check(compiled, function, torch.randn(rows, columns))


@pytest.mark.parametrize(
    "mark", [torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic], ids=lambda f: f.__name__
)
def test_marked_dimensions(mark):
    compiled = torch.compile(sizes_inside, fullgraph=True)
    for rows in (4, 9):
        x = torch.randn(rows, 40)
        card = x.to("spyre")
        mark(card, 0)
        torch.testing.assert_close(host(compiled(card)), sizes_inside(x), rtol=1e-4, atol=1e-4)


def test_sizes_of_zero_and_one():
    compiled = torch.compile(halves, fullgraph=True, dynamic=True)
    for rows in (4, 1, 0, 3):
        check(compiled, halves, torch.randn(rows, 40))


@pytest.mark.parametrize("dynamic", [True, None])
def test_numbers_as_arguments(dynamic):
    def function(x, whole, real):
        return x * whole + real, x[:whole], torch.full((whole, 2), real, device=x.device)

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic)
    for whole, real in ((2, 0.5), (3, 0.5), (3, 1.5), (5, 2.0)):
        check(compiled, function, torch.randn(6, 40), whole, real)


@pytest.mark.parametrize("dynamic", [True, None])
def test_training(dynamic):
    module = nn.Sequential(nn.Linear(20, 30), nn.GELU(), nn.Linear(30, 5))
    card = nn.Sequential(nn.Linear(20, 30), nn.GELU(), nn.Linear(30, 5)).to("spyre")
    card.load_state_dict(module.state_dict())
    compiled = torch.compile(card, fullgraph=True, dynamic=dynamic)
    for rows in (4, 7, 9):
        x = torch.randn(rows, 20)
        for model, given in ((module, x), (compiled, x.to("spyre"))):
            module.zero_grad() if model is module else card.zero_grad()
            model(given).square().sum().backward()
        for mine, theirs in zip(card.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dynamic", [True, None])
def test_decoding(dynamic):
    """A sequence that grows by one token a step, with its mask."""

    def attend(q, k, v):
        length, seen = q.shape[2], k.shape[2]
        mask = torch.ones(length, seen, dtype=torch.bool, device=q.device).tril(seen - length)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    compiled = torch.compile(attend, fullgraph=True, dynamic=dynamic)
    for length, seen in ((5, 5), (1, 6), (1, 7), (1, 65)):
        k, v = torch.randn(2, 1, 2, seen, 16)
        check(compiled, attend, torch.randn(1, 2, length, 16), k, v)


def test_sizes_across_a_fallback():
    def function(x):
        values = torch.sort(x * 2, dim=0)[0]
        return values[: x.shape[0] // 2] + x.shape[0]

    compiled = torch.compile(function, dynamic=True)
    with torch.spyre.fallback("count"):
        for rows in (4, 7):
            check(compiled, function, torch.randn(rows, 5))


def test_views_with_offsets_that_change():
    compiled = torch.compile(lambda x: x * 2 + 1, fullgraph=True, dynamic=True)
    base = torch.randn(9, 70)
    card = base.to("spyre")
    for start, stop in ((0, 4), (3, 9), (2, 4)):
        torch.testing.assert_close(compiled(card[start:stop, start:]).cpu(), base[start:stop, start:] * 2 + 1)
