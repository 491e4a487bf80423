"""Training on the card: compiled and eager steps give losses and gradients like the CPU's."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.spyre.fallback("error"):
        yield


ways = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])


def gradients(module: nn.Module, *inputs: torch.Tensor, run=None) -> list[torch.Tensor]:
    """The loss and the gradients of parameters and inputs, on the CPU."""
    inputs = tuple(t.clone().requires_grad_(t.is_floating_point()) for t in inputs)
    module.zero_grad()
    out = (run if run is not None else module)(*inputs).float()
    loss = (out * torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.device)).sum()
    loss.backward()
    found = [loss, *(p.grad for p in module.parameters()), *(t.grad for t in inputs if t.requires_grad)]
    return [t.detach().cpu().float() for t in found if t is not None]


def check(module: nn.Module, *inputs, compiled: bool = True, dtype: torch.dtype = torch.float32, limit: float = 1e-3):
    want = gradients(module, *inputs)
    card = copy.deepcopy(module).to("spyre", dtype)
    on_card = [t.to("spyre", dtype if t.is_floating_point() else t.dtype) for t in inputs]
    got = gradients(card, *on_card, run=torch.compile(card, fullgraph=True) if compiled else None)
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        scale = theirs.abs().max().item() or 1
        torch.testing.assert_close(mine, theirs, rtol=limit, atol=limit * scale)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 70), nn.GELU(), nn.LayerNorm(70), nn.Linear(70, 10))


PARTS = {
    "linear": lambda: (nn.Linear(20, 10), torch.randn(7, 20)),
    "mlp": lambda: (mlp(), torch.randn(7, 20)),
    "silu": lambda: (nn.Sequential(nn.Linear(20, 30), nn.SiLU(), nn.Linear(30, 5)), torch.randn(3, 5, 20)),
    "relu": lambda: (nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Tanh(), nn.Linear(30, 5)), torch.randn(3, 20)),
    "rms norm": lambda: (nn.RMSNorm(20), torch.randn(3, 5, 20)),
    "embedding": lambda: (nn.Embedding(30, 20), torch.randint(30, (4, 9))),
    "softmax": lambda: (nn.Sequential(nn.Linear(20, 30), nn.Softmax(-1)), torch.randn(5, 20)),
    "batch norm": lambda: (nn.BatchNorm1d(20), torch.randn(9, 20)),
    "conv1d": lambda: (nn.Conv1d(4, 6, 3, padding=1), torch.randn(2, 4, 11)),
    "dilated conv1d": lambda: (nn.Conv1d(6, 8, 3, padding=2, stride=2, dilation=2, groups=2), torch.randn(2, 6, 17)),
    "depthwise conv1d": lambda: (nn.Conv1d(6, 6, 4, padding=3, groups=6), torch.randn(2, 6, 9)),
    "conv2d": lambda: (nn.Conv2d(3, 8, 4, stride=4), torch.randn(2, 3, 8, 12)),
    "attention": lambda: (SelfAttention(), torch.randn(2, 11, 32)),
}


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.before, self.after = SelfAttention(), nn.RMSNorm(32), nn.RMSNorm(32)
        self.gate, self.up, self.down = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(self, x):
        x = x + self.attention(self.before(x))
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@ways
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_gradients(part, compiled):
    check(*part(), compiled=compiled)


@ways
@pytest.mark.parametrize("length", [1, 37])
def test_a_transformer_block(length, compiled):
    check(Block(), torch.randn(2, length, 32), compiled=compiled)
    check(Block(), torch.randn(2, length, 32), compiled=compiled, dtype=torch.float16, limit=3e-2)


@ways
def test_checkpoints(compiled):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Block(), Block()

        def forward(self, x):
            for block in (self.first, self.second):
                x = checkpoint(block, x, use_reentrant=False)
            return x

    check(Twice(), torch.randn(2, 5, 32), compiled=compiled)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw, one by one": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
}


def losses(module, optimizer, x, y, steps: int = 4, compiled: bool = False) -> list[float]:
    forward = torch.compile(module, fullgraph=True) if compiled else module
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@ways
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_steps(optimizer, compiled):
    module, x, y = mlp(), torch.randn(16, 20), torch.randint(10, (16,))
    card = copy.deepcopy(module).to("spyre")
    want = losses(module, optimizer(module.parameters()), x, y)
    got = losses(card, optimizer(card.parameters()), x.to("spyre"), y.to("spyre"), compiled=compiled)
    assert got == pytest.approx(want, rel=1e-3)
    assert got[-1] < got[0]


def test_a_compiled_optimizer():
    module, x, y = mlp(), torch.randn(16, 20), torch.randint(10, (16,))
    card = copy.deepcopy(module).to("spyre")
    want = losses(module, torch.optim.AdamW(module.parameters(), lr=0.01), x, y)
    optimizer = torch.optim.AdamW(card.parameters(), lr=0.01)
    optimizer.step = torch.compile(optimizer.step)
    assert losses(card, optimizer, x.to("spyre"), y.to("spyre")) == pytest.approx(want, rel=1e-3)


def test_clipping():
    module = mlp()
    card = copy.deepcopy(module).to("spyre")
    x = torch.randn(16, 20)
    norms = []
    for m, given in ((module, x), (card, x.to("spyre"))):
        m(given).square().sum().backward()
        norms.append(nn.utils.clip_grad_norm_(m.parameters(), 1.0).item())
        norms.append(m[0].weight.grad.norm().item())
    assert norms[2:] == pytest.approx(norms[:2], rel=1e-3)


@ways
def test_autocast(compiled):
    """Products in fp16, the loss in fp32: the gradients come back in the parameters' fp32."""
    module, x, y = mlp(), torch.randn(16, 20), torch.randint(10, (16,))
    card = copy.deepcopy(module).to("spyre")

    def loss_of(model, x, y):
        with torch.autocast("spyre", dtype=torch.float16):
            out = model(x)
        assert out.dtype == torch.float16 or out.device.type == "cpu"
        return F.cross_entropy(out.float(), y)

    want = loss_of(module, x, y)
    want.backward()
    step = torch.compile(loss_of, fullgraph=True) if compiled else loss_of
    got = step(card, x.to("spyre"), y.to("spyre"))
    got.backward()
    assert got.item() == pytest.approx(want.item(), rel=2e-2)
    for mine, theirs in zip(card.parameters(), module.parameters(), strict=True):
        assert mine.grad.dtype == torch.float32
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=5e-2, atol=2e-2)


@ways
def test_dropout_in_training(compiled):
    """The backward pass uses the forward's mask."""
    x = torch.ones(50, 40, device="spyre", requires_grad=True)
    function = (lambda f: torch.compile(f, fullgraph=True)) if compiled else (lambda f: f)
    with torch.spyre.fallback("count"):
        out = function(lambda x: F.dropout(x * 2, 0.5))(x)
        out.sum().backward()
    assert torch.equal(out.detach().cpu(), x.grad.cpu())
    assert 0.4 < (out.detach().cpu() == 0).float().mean() < 0.6


def test_gradients_add_up():
    x = torch.ones(3, 40, device="spyre", requires_grad=True)
    compiled = torch.compile(lambda x: (x * 3).sum(), fullgraph=True)
    compiled(x).backward()
    compiled(x).backward()
    assert x.grad.cpu().unique().tolist() == [6]


def test_retained_graphs_and_second_derivatives_of_eager():
    x = torch.full((3,), 2.0, device="spyre", requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert (first.tolist(), second.tolist()) == ([12] * 3, [12] * 3)
