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
    "transposed conv2d": lambda: (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), torch.randn(2, 4, 5, 6)),
    "group norm": lambda: (nn.GroupNorm(2, 6), torch.randn(2, 6, 5)),
    "max pool": lambda: (nn.MaxPool2d(3, 2, 1), torch.randn(2, 3, 9, 8)),
    "average pool": lambda: (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), torch.randn(2, 3, 9, 8)),
    "adaptive pools": lambda: (
        nn.Sequential(nn.AdaptiveAvgPool2d((7, 8)), nn.AdaptiveMaxPool2d((3, 4))),
        torch.randn(2, 3, 9, 8),
    ),
    "upsampling": lambda: (
        nn.Sequential(nn.Upsample(scale_factor=2), nn.Upsample(size=(9, 5), mode="bilinear")),
        torch.randn(2, 3, 4, 5),
    ),
    "bilinear": lambda: (Pair(nn.Bilinear(5, 6, 7)), torch.randn(9, 5), torch.randn(9, 6)),
    "attention": lambda: (SelfAttention(), torch.randn(2, 11, 32)),
}


class Pair(nn.Sequential):
    """A module of two inputs."""

    def forward(self, x, y):
        return self[0](x, y)


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


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not"])
def test_checkpoints_draw_their_dropout_again(reentrant):
    """The second forward pass has the first one's mask: gradients are those without a checkpoint, bit for bit."""
    block = nn.Sequential(nn.Linear(20, 40), nn.GELU(), nn.Dropout(0.5), nn.Linear(40, 20)).to("spyre")
    x, found = torch.randn(9, 20).to("spyre"), []
    for run in (block, lambda x: checkpoint(block, x, use_reentrant=reentrant)):
        torch.manual_seed(3)
        block.zero_grad()
        given = x.clone().requires_grad_()
        (run(given).square().sum() + F.dropout(given, 0.5).sum()).backward()
        found.append([t.grad.cpu() for t in (given, *block.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


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


class Classifier(nn.Module):
    """A small network for pictures."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.more = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8))
        self.out = nn.Linear(8, 10)

    def forward(self, x):
        x = self.features(x)
        return self.out(F.adaptive_avg_pool2d(F.relu(x + self.more(x)), 1).flatten(1))


@ways
def test_a_convolutional_network(compiled):
    """The running statistics change as on the CPU, and are what inference then uses."""
    module, x, y = Classifier(), torch.randn(6, 3, 12, 12), torch.randint(10, (6,))
    card = copy.deepcopy(module).to("spyre")
    want = losses(module, OPTIMIZERS["momentum"](module.parameters()), x, y)
    on_card = x.to("spyre"), y.to("spyre")
    got = losses(card, OPTIMIZERS["momentum"](card.parameters()), *on_card, compiled=compiled)
    assert got == pytest.approx(want, rel=1e-3)
    for name, theirs in module.named_buffers():
        torch.testing.assert_close(card.get_buffer(name).cpu(), theirs, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(card.eval()(on_card[0]).cpu(), module.eval()(x), rtol=1e-2, atol=1e-2)


class Language(nn.Module):
    """A small transformer that learns which number comes next."""

    def __init__(self, layers: int):
        super().__init__()
        self.tokens, self.places = nn.Embedding(29, 32), nn.Embedding(16, 32)
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 2, 64, **options) for _ in range(layers))
        self.norm, self.out = nn.LayerNorm(32), nn.Linear(32, 29)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.out(self.norm(x))


def learn(module, texts, dtype: torch.dtype, compiled: bool = False) -> list[float]:
    """The losses of 50 steps: in fp16 with scaled gradients, as one does."""
    optimizer, device = torch.optim.AdamW(module.parameters(), lr=3e-3), texts[0].device.type
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=20, enabled=dtype == torch.float16)
    forward, found = torch.compile(module, fullgraph=True) if compiled else module, []
    for step in range(50):
        ids = texts[step % len(texts)]
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
            loss = F.cross_entropy(forward(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append(loss.item())
    return found


# What the formats may change in 50 steps, relative.
CURVES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}


@pytest.mark.parametrize(
    ("layers", "dtype", "compiled"),
    [
        (1, torch.float32, True),
        *(pytest.param(2, d, c, marks=pytest.mark.slow) for d in CURVES for c in (True, False)),
    ],
)
def test_a_transformer_trains(layers, dtype, compiled):
    """The loss falls as on the CPU in fp32."""
    texts = [(torch.arange(13) + torch.randint(29, (8, 1))) % 29 for _ in range(4)]
    module = Language(layers)
    card = copy.deepcopy(module).to("spyre")
    want = learn(module, texts, torch.float32)
    got = learn(card, [ids.to("spyre") for ids in texts], dtype, compiled)
    assert got == pytest.approx(want, rel=CURVES[dtype])
    assert got[-1] < got[0] / 4


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


def test_random_ops_are_recomputed_with_the_numbers_they_had():
    model = torch.nn.Sequential(torch.nn.Linear(8, 65), torch.nn.Dropout(0.5)).to("spyre")
    x = torch.randn(4, 8).to("spyre")

    def gradient(function):
        given = x.clone().requires_grad_()
        torch.spyre.manual_seed(3)
        result = function(given)
        result.sum().backward()
        return result.detach().cpu(), given.grad.cpu()

    with_checkpoint = torch.compile(lambda x: checkpoint(model, x, use_reentrant=False))
    for got, want in zip(gradient(with_checkpoint), gradient(model), strict=True):
        torch.testing.assert_close(got, want)
