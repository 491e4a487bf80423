"""Parts of models as their users write them: whole on the card, compiled in one graph or op by op, values as the CPU's.

Expected values are the CPU's in fp32, from weights and inputs that the card's format holds exactly. What is compiled
for fp16 gives the same bits on fewer cores that keep nothing in LX.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from tests.plans import planned

# The card rounds every op to 10 bits in fp16 and 24 in fp32; blocks are a few dozen ops deep, values are near 1.
TOLERANCE = {torch.float16: 3e-2, torch.float32: 1e-4}
LENGTHS = [1, 37, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 65))]


@pytest.fixture(autouse=True)
def strict():
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.spyre.fallback("error"):
        yield


def rounded(t):
    """A value that both formats of the card hold."""
    if not isinstance(t, torch.Tensor) or not t.is_floating_point():
        return t
    return t.half().to("spyre").cpu().to(t.dtype)


def check(module: nn.Module, *args, dtype: torch.dtype = torch.float16, compiled: bool = True, tolerance: float = 0):
    """One call on the card against the CPU in fp32: results, and what is left in the arguments and buffers."""
    module = module.eval()
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.copy_(rounded(tensor))
        args = pytree.tree_map(rounded, args)
        state = {name: placed(t, dtype) for name, t in module.state_dict().items()}
        want = pytree.tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, args)
        want = (module(*want), want, dict(module.named_buffers()))
        module.load_state_dict(module.state_dict())
        on_card = module.to("spyre", dtype)
        forward = torch.compile(on_card, fullgraph=True) if compiled else on_card

        def called():
            on_card.load_state_dict(state)
            card = pytree.tree_map(lambda t: placed(t, dtype), args)
            return pytree.tree_map(on_host, (forward(*card), card, dict(on_card.named_buffers())))

        got = called()
        if compiled and dtype == torch.float16:
            with planned(lx_planning=False, sencores=7):
                torch.testing.assert_close(called(), got, rtol=0, atol=0, equal_nan=True)
    limit = tolerance or TOLERANCE[dtype]
    torch.testing.assert_close(got, pytree.tree_map(on_host, want), rtol=limit, atol=limit)


def placed(t, dtype):
    if not isinstance(t, torch.Tensor):
        return t
    return t.to("spyre", dtype if t.is_floating_point() else t.dtype)


def on_host(t):
    return t.cpu().to(torch.float32 if t.is_floating_point() else t.dtype) if isinstance(t, torch.Tensor) else t


ways = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
dtypes = pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
lengths = pytest.mark.parametrize("length", LENGTHS)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


# --- norms


class RMSNorm(nn.Module):
    """With its explicit fp32, as model code has it."""

    def __init__(self, size: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(1 + torch.randn(size) / 8)
        self.eps = eps

    def forward(self, x):
        given = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(given)


@ways
@dtypes
@pytest.mark.parametrize("norm", [RMSNorm, nn.RMSNorm, nn.LayerNorm, lambda n: nn.LayerNorm(n, bias=False)])
def test_norms(norm, dtype, compiled):
    check(norm(96), torch.randn(2, 5, 96), dtype=dtype, compiled=compiled)


# --- positions


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rope_halves(q, cos, sin):
    return q * cos + rotate_half(q) * sin


def rope_slices(q, cos, sin):
    half = q.shape[-1] // 2
    a, b = q[..., :half], q[..., half:]
    c, s = cos[..., :half], sin[..., :half]
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def rope_pairs(q, cos, sin):
    """Neighbours are rotated, as the first LLaMA did without complex numbers."""
    half = q.shape[-1] // 2
    pairs = q.float().reshape(*q.shape[:-1], half, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    c, s = cos[..., :half], sin[..., :half]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2).type_as(q)


def rope_every_other(q, cos, sin):
    half = q.shape[-1] // 2
    a, b, c, s = q[..., ::2], q[..., 1::2], cos[..., :half], sin[..., :half]
    out = torch.empty_like(q)
    out[..., ::2] = a * c - b * s
    out[..., 1::2] = a * s + b * c
    return out


def angles(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    steps = torch.outer(torch.arange(length).float(), 10000 ** (-torch.arange(0, size, 2) / size))
    both = torch.cat((steps, steps), -1)
    return both.cos(), both.sin()


@ways
@dtypes
@lengths
@pytest.mark.parametrize("rope", [rope_halves, rope_slices, rope_pairs, rope_every_other])
def test_rotary_positions(rope, length, dtype, compiled):
    check(Function(rope), torch.randn(1, 4, length, 32), *angles(length, 32), dtype=dtype, compiled=compiled)


@ways
def test_rotary_angles_from_positions(compiled):
    def cosines(positions):
        inverse = 1.0 / (100.0 ** (torch.arange(0, 16, 2, dtype=torch.int64, device=positions.device).float() / 16))
        freqs = (inverse[None, :, None] @ positions[:, None, :].float()).transpose(1, 2)
        both = torch.cat((freqs, freqs), dim=-1)
        return both.cos(), both.sin()

    check(Function(cosines), torch.arange(37)[None], dtype=torch.float32, compiled=compiled, tolerance=1e-3)


# --- attention


class Attention(nn.Module):
    """Grouped queries, written out or with PyTorch's own attention; keys and values may go through a cache."""

    def __init__(self, size: int = 64, heads: int = 4, groups: int = 2, how: str = "explicit"):
        super().__init__()
        self.heads, self.groups, self.head, self.how = heads, groups, size // heads, how
        self.q, self.o = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
        self.k, self.v = (nn.Linear(size, groups * self.head, bias=False) for _ in range(2))

    def project(self, x, cos, sin):
        shape = (*x.shape[:-1], -1, self.head)
        q, k, v = (linear(x).view(shape).transpose(1, 2) for linear in (self.q, self.k, self.v))
        return rope_halves(q, cos, sin), rope_halves(k, cos, sin), v

    def attend(self, q, k, v, mask):
        if self.how == "sdpa":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        batch, groups, length, head = k.shape
        shape = (batch, groups, self.heads // groups, length, head)
        k = k[:, :, None].expand(shape).reshape(batch, self.heads, length, head)
        v = v[:, :, None].expand(shape).reshape(batch, self.heads, length, head)
        weights = torch.matmul(q, k.transpose(2, 3)) * self.head**-0.5 + mask
        weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
        return torch.matmul(weights, v)

    def forward(self, x, cos, sin):
        q, k, v = self.project(x, cos, sin)
        mask = torch.full((x.shape[1],) * 2, -1e4, dtype=x.dtype, device=x.device).triu(1)
        out = self.attend(q, k, v, mask)
        return self.o(out.transpose(1, 2).reshape(x.shape))


@ways
@dtypes
@lengths
@pytest.mark.parametrize("how", ["explicit", "sdpa"])
def test_attention(how, length, dtype, compiled):
    check(Attention(how=how), torch.randn(2, length, 64), *angles(length, 16), dtype=dtype, compiled=compiled)


@ways
@pytest.mark.parametrize("causal", [False, True])
def test_plain_attention(causal, compiled):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    check(Function(attend), *(torch.randn(2, 2, 37, 32) for _ in range(3)), compiled=compiled)


@ways
def test_multihead_attention(compiled):
    class Self(nn.MultiheadAttention):
        def forward(self, x):
            return super().forward(x, x, x)

    check(Self(64, 4, batch_first=True), torch.randn(2, 37, 64), compiled=compiled)


# --- caches


def write_by_slice(cache, new, positions, start: int):
    cache[:, :, start : start + new.shape[2]] = new


def write_by_index_copy(cache, new, positions, start: int):
    cache.index_copy_(2, positions, new)


def write_by_index_put(cache, new, positions, start: int):
    cache[:, :, positions] = new


def write_by_copy(cache, new, positions, start: int):
    cache.narrow(2, start, new.shape[2]).copy_(new)


def write_by_scatter(cache, new, positions, start: int):
    cache.scatter_(2, positions[None, None, :, None].expand(new.shape), new)


class Cached(Attention):
    """Decoding: new keys and values go into a cache, attention sees all of it behind a mask."""

    def __init__(self, write, size: int = 70):
        super().__init__()
        self.write = write
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(2, self.groups, size, self.head))

    def forward(self, x, cos, sin, positions, start):
        q, k, v = self.project(x, cos, sin)
        self.write(self.keys, k, positions, start)
        self.write(self.values, v, positions, start)
        seen = torch.arange(self.keys.shape[2], device=x.device)[None] <= positions[:, None]
        mask = torch.where(seen, 0.0, -1e4).to(x.dtype)
        out = self.attend(q, self.keys, self.values, mask)
        return self.o(out.transpose(1, 2).reshape(x.shape))


WRITES = [write_by_slice, write_by_index_copy, write_by_index_put, write_by_copy, write_by_scatter]


@ways
@pytest.mark.parametrize("length, start", [(37, 0), (1, 36), (3, 65)])
@pytest.mark.parametrize("write", WRITES)
def test_attention_with_a_cache(write, length, start, compiled):
    cos, sin = (t[start:] for t in angles(start + length, 16))
    positions = torch.arange(start, start + length)
    check(Cached(write), torch.randn(2, length, 64), cos, sin, positions, start, compiled=compiled)


def test_a_cache_that_grows():
    """Decoding without a fixed size: every step concatenates."""

    def step(keys, new):
        keys = torch.cat([keys, new], dim=2)
        return keys, keys.mean(2)

    compiled, keys, want = torch.compile(step, fullgraph=True), *(torch.randn(1, 2, 3, 16),) * 2
    keys = keys.to("spyre")
    for _ in range(4):
        new = torch.randn(1, 2, 1, 16)
        keys, mean = compiled(keys, new.to("spyre"))
        want, expected = step(want, new)
        torch.testing.assert_close((keys.cpu(), mean.cpu()), (want, expected))


# --- feed forward


class SwiGLU(nn.Module):
    def __init__(self, size: int = 64, inner: int = 100):
        super().__init__()
        self.up, self.gate = nn.Linear(size, inner, bias=False), nn.Linear(size, inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class FusedSwiGLU(nn.Module):
    def __init__(self, size: int = 64, inner: int = 100):
        super().__init__()
        self.both, self.down = nn.Linear(size, 2 * inner), nn.Linear(inner, size)

    def forward(self, x):
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


@ways
@dtypes
@pytest.mark.parametrize("feed", [SwiGLU, FusedSwiGLU])
def test_gated_feed_forward(feed, dtype, compiled):
    check(feed(), torch.randn(2, 37, 64), dtype=dtype, compiled=compiled)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed = Attention(), SwiGLU()
        self.before, self.after = RMSNorm(64), RMSNorm(64)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.before(x), cos, sin)
        return x + self.feed(self.after(x))


@ways
@dtypes
@lengths
def test_decoder_layers(length, dtype, compiled):
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(50, 64)
            self.layers = nn.ModuleList([Layer(), Layer()])
            self.norm = RMSNorm(64)

        def forward(self, tokens, cos, sin):
            x = self.tokens(tokens)
            for layer in self.layers:
                x = layer(x, cos, sin)
            return F.linear(self.norm(x), self.tokens.weight) / 8

    check(Decoder(), torch.randint(50, (2, length)), *angles(length, 16), dtype=dtype, compiled=compiled)


# --- experts


class Experts(nn.Module):
    """The top 2 of 8 experts for every token."""

    def __init__(self, how, size: int = 64, inner: int = 32, count: int = 8):
        super().__init__()
        self.how, self.count, self.router = how, count, nn.Linear(size, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, size, 2 * inner) / 8)
        self.down = nn.Parameter(torch.randn(count, inner, size) / 8)

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        weights = F.softmax(self.router(tokens), dim=-1, dtype=torch.float32)
        weights, chosen = torch.topk(weights, 2, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        return self.how(self, tokens, weights, chosen).reshape(x.shape)


def gathered(experts, tokens, weights, chosen):
    """The weights of every token's experts, then one batched product."""
    rows = torch.arange(tokens.shape[0], device=tokens.device).unsqueeze(1).expand(-1, 2).reshape(-1)
    chosen = chosen.reshape(-1)
    gate, up = torch.bmm(tokens[rows].unsqueeze(1), experts.up[chosen]).chunk(2, dim=-1)
    out = torch.bmm(F.silu(gate) * up, experts.down[chosen]).squeeze(1) * weights.reshape(-1, 1)
    return out.view(tokens.shape[0], 2, -1).sum(1)


def all_experts(experts, tokens, weights, chosen):
    """Every expert sees every token; routing is a mask."""
    chosen = F.one_hot(chosen, experts.count).to(weights.dtype)
    share = (chosen * weights[..., None]).sum(1)
    gate, up = torch.bmm(tokens.expand(experts.count, *tokens.shape), experts.up).chunk(2, dim=-1)
    out = torch.bmm(F.silu(gate) * up, experts.down)
    return (out * share.t()[..., None]).sum(0)


def one_by_one(experts, tokens, weights, chosen):
    out = torch.zeros_like(tokens)
    for i in range(experts.count):
        share = torch.where(chosen == i, weights, torch.zeros_like(weights)).sum(-1, keepdim=True)
        gate, up = (tokens @ experts.up[i]).chunk(2, dim=-1)
        out = out + (F.silu(gate) * up) @ experts.down[i] * share
    return out


def scattered_shares(experts, tokens, weights, chosen):
    share = torch.zeros(tokens.shape[0], experts.count, dtype=weights.dtype, device=weights.device)
    share.scatter_(1, chosen, weights)
    gate, up = torch.einsum("td,edf->etf", tokens, experts.up).chunk(2, dim=-1)
    return torch.einsum("etf,efd,te->td", F.silu(gate) * up, experts.down, share)


@ways
@dtypes
@pytest.mark.parametrize("length", [1, 37])
@pytest.mark.parametrize("how", [gathered, all_experts, one_by_one, scattered_shares])
def test_experts(how, length, dtype, compiled):
    check(Experts(how), torch.randn(1, length, 64), dtype=dtype, compiled=compiled)


# --- encoders and stems


@ways
@dtypes
@pytest.mark.parametrize("first", [False, True])
def test_encoder_layer(first, dtype, compiled):
    layer = nn.TransformerEncoderLayer(64, 4, 96, activation="gelu", batch_first=True, norm_first=first)
    check(layer, torch.randn(2, 37, 64), dtype=dtype, compiled=compiled)


@ways
@pytest.mark.parametrize(
    "masks", [{"src_mask"}, {"src_key_padding_mask"}, {"src_mask", "src_key_padding_mask"}], ids=len
)
def test_encoder_layer_with_masks(masks, compiled):
    class Masked(nn.TransformerEncoderLayer):
        def forward(self, x, later, padding):
            given = {"src_mask": later, "src_key_padding_mask": padding}
            return (
                super().forward(x, **{name: mask for name, mask in given.items() if name in masks})
                * ~padding[..., None]
            )

    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    padding = torch.arange(7) >= torch.tensor([[7], [5]])
    check(Masked(64, 4, 96, batch_first=True), torch.randn(2, 7, 64), later, padding, compiled=compiled)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_decoder_layer_of_torch(compiled):
    check(
        nn.TransformerDecoderLayer(64, 4, 96, batch_first=True),
        torch.randn(2, 7, 64),
        torch.randn(2, 5, 64),
        compiled=compiled,
    )


@ways
@dtypes
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_feed_forward(approximate, dtype, compiled):
    feed = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 100), nn.GELU(approximate), nn.Linear(100, 64))
    check(feed, torch.randn(2, 37, 64), dtype=dtype, compiled=compiled)


@ways
@dtypes
def test_patches(dtype, compiled):
    """A vision stem: patches by a strided convolution, a class token in front, learned positions."""

    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 64, 8, stride=8)
            self.token, self.positions = nn.Parameter(torch.randn(1, 1, 64)), nn.Parameter(torch.randn(1, 13, 64))

        def forward(self, x):
            x = self.patches(x).flatten(2).transpose(1, 2)
            return torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions

    check(Patches(), torch.randn(2, 3, 24, 32), dtype=dtype, compiled=compiled)


@ways
@dtypes
def test_audio_stem(dtype, compiled):
    stem = nn.Sequential(
        nn.Conv1d(20, 32, 3, padding=1), nn.GELU(), nn.Conv1d(32, 32, 3, stride=2, padding=1), nn.GELU()
    )
    check(stem, torch.randn(2, 20, 50), dtype=dtype, compiled=compiled)


# --- state space pieces


@ways
@dtypes
@lengths
def test_depthwise_convolution(length, dtype, compiled):
    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(48, 48, 4, groups=48, padding=3)

        def forward(self, x):
            return F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))

    check(Causal(), torch.randn(2, length, 48), dtype=dtype, compiled=compiled)


@ways
def test_a_convolutions_state(compiled):
    """One step of decoding: the window moves, the new input enters."""

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(48, 4))
            self.register_buffer("state", torch.randn(2, 48, 4))

        def forward(self, x):
            self.state.copy_(torch.roll(self.state, shifts=-1, dims=-1))
            self.state[:, :, -1] = x
            return F.silu((self.state * self.weight).sum(-1))

    check(Step(), torch.randn(2, 48), compiled=compiled)


def segment_sums(x):
    length = x.size(-1)
    x = x[..., None].expand(*x.size(), length)
    below = torch.tril(torch.ones(length, length, device=x.device, dtype=torch.bool), diagonal=-1)
    sums = torch.cumsum(x.masked_fill(~below, 0), dim=-2)
    return sums.masked_fill(~torch.tril(torch.ones_like(below)), -torch.inf)


@ways
@lengths
def test_segment_sums(length, compiled):
    def decays(x):
        return torch.exp(segment_sums(-F.softplus(x)))

    check(Function(decays), torch.randn(2, 3, length), dtype=torch.float32, compiled=compiled)


class Scan(nn.Module):
    """The chunked scan of Mamba-2, as its reference has it."""

    def __init__(self, chunk: int):
        super().__init__()
        self.chunk, self.bias, self.decay = chunk, nn.Parameter(torch.randn(4)), nn.Parameter(torch.rand(4))

    def forward(self, x, dt, b, c):
        dt = F.softplus(dt.float() + self.bias)
        x, a = x.float() * dt[..., None], -torch.exp(self.decay.float()) * dt
        pad = -x.shape[1] % self.chunk
        x, b, c = (F.pad(t.float(), (0, 0, 0, 0, 0, pad)) for t in (x, b, c))
        x, a, b, c = (t.reshape(t.shape[0], -1, self.chunk, *t.shape[2:]) for t in (x, F.pad(a, (0, 0, 0, pad)), b, c))
        a = a.permute(0, 3, 1, 2)
        sums = torch.cumsum(a, dim=-1)
        inside = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, torch.exp(segment_sums(a)), x)
        states = torch.einsum("bclhn,bhcl,bclhp->bchpn", b, torch.exp(sums[..., -1:] - sums), x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
        between = torch.exp(segment_sums(F.pad(sums[..., -1], (1, 0))))
        states = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]
        across = torch.einsum("bclhn,bchpn,bhcl->bclhp", c, states, torch.exp(sums))
        return (inside + across).flatten(1, 2)[:, : -pad or None]


@ways
@dtypes
@pytest.mark.parametrize("length", [3, 37])
def test_state_space_scan(length, dtype, compiled):
    inputs = torch.randn(2, length, 4, 16), torch.randn(2, length, 4), *(torch.randn(2, length, 4, 8) for _ in range(2))
    check(Scan(16), *inputs, dtype=dtype, compiled=compiled)


# --- losses and sampling


@ways
def test_next_tokens(compiled):
    def sample(logits):
        values, tokens = logits[:, -1].topk(5)
        return tokens, logits.argmax(-1), F.log_softmax(values, -1)

    check(Function(sample), torch.randn(2, 5, 100), dtype=torch.float32, compiled=compiled)


@ways
@dtypes
def test_cross_entropy(dtype, compiled):
    def loss(logits, targets):
        return F.cross_entropy(logits.float().view(-1, 100), targets.view(-1), ignore_index=3)

    check(Function(loss), torch.randn(2, 5, 100), torch.randint(100, (2, 5)), dtype=dtype, compiled=compiled)
