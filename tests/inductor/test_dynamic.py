"""Sizes that change between calls: right results, one compile of the program, card programs for each size."""

import threading

import pytest
import torch
from torch import nn
from torch._inductor.codecache import CppCodeCache
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from torch_spyre import _C
from torch_spyre._inductor import config


@pytest.fixture(autouse=True)
def strict(fresh):
    torch.manual_seed(0)
    with torch.spyre.fallback("error"):
        yield


def host(tree):
    return pytree.tree_map(lambda v: v.cpu() if isinstance(v, torch.Tensor) else v, tree)


def on_card(tree):
    return pytree.tree_map(lambda v: v.to("spyre") if isinstance(v, torch.Tensor) else v, tree)


def check(compiled, function, *args):
    torch.testing.assert_close(host(compiled(*on_card(args))), function(*args), rtol=1e-4, atol=1e-4)


def compiles(counters) -> tuple[int, int]:
    """How often Dynamo compiled, and how often a program was specialised."""
    return counters["stats"]["unique_graphs"], counters["spyre"]["specializations"]


def sizes_inside(x):
    """Sizes as numbers, as shapes of new tensors and as bounds of loops in kernels."""
    rows, columns = x.shape
    mask = torch.ones(rows, rows, device=x.device).tril()
    positions = torch.arange(columns, device=x.device)
    return mask @ x / rows + positions, x.expand(2, -1, -1).reshape(rows * 2, columns)


def sizes_out(x):
    return x.shape[0], x * 2, x.numel() + 1


def halves(x):
    return x[: x.shape[0] // 2] + 1, x[x.shape[0] // 2 :].sum(0)


def softmax(x):
    return F.softmax(x @ x.t(), dim=-1)


def padded(x):
    return F.pad(x, (0, 3, 1, 0))


def joined(x):
    return torch.cat([x, x[:1], x.flip(0)]), torch.stack([x[0], x[1]])


def in_place(x):
    y = x.clone()
    y[: x.shape[0] // 2] = x.shape[0]
    return y.add_(x.shape[1])


def views(x):
    """Outputs that are views of an input, and of each other."""
    y = x * 2
    return x.t(), x[1:], y, y.view(-1)[1:], x.view(-1, 1)


FUNCTIONS = [sizes_inside, sizes_out, halves, softmax, padded, joined, in_place, views]
SIZES = [(4, 64), (6, 65), (9, 130)]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_one_compile(function, fresh):
    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for size in (*SIZES, *SIZES):
        check(compiled, function, torch.randn(size))
    assert compiles(fresh) == (1, len(SIZES))


@pytest.mark.parametrize("dynamic", [False, None])
def test_sizes_seen_first(dynamic, fresh):
    """The second size that comes makes a program dynamic, unless that is turned off."""
    compiled = torch.compile(softmax, fullgraph=True, dynamic=dynamic)
    for rows in (4, 6, 7, 9):
        check(compiled, softmax, torch.randn(rows, 64))
    assert compiles(fresh) == ((4, 0) if dynamic is False else (2, 3))


def test_more_sizes_than_dynamo_would_compile(fresh):
    compiled = torch.compile(lambda x: x + x.shape[0])
    for rows in range(2, 4 + torch._dynamo.config.recompile_limit):
        assert compiled(torch.zeros(rows, 5, device="spyre")).cpu().unique().tolist() == [rows]
    assert compiles(fresh) == (2, torch._dynamo.config.recompile_limit + 1)


@pytest.mark.parametrize(
    "mark", [torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic], ids=lambda f: f.__name__
)
def test_marked_dimensions(mark, fresh):
    compiled = torch.compile(sizes_inside, fullgraph=True)
    for rows in (4, 9, 6):
        x = torch.randn(rows, 40)
        card = x.to("spyre")
        mark(card, 0)
        torch.testing.assert_close(host(compiled(card)), sizes_inside(x), rtol=1e-4, atol=1e-4)
    assert compiles(fresh) == (1, 3)


def test_a_marked_dimension_that_the_program_fixes():
    x = torch.randn(4, 40).to("spyre")
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(ConstraintViolationError, match="as dynamic but your code specialized it"):
        torch.compile(lambda x: x * 2 if x.shape[0] == 4 else x)(x)


def test_guards_of_the_program(fresh):
    """A program that looks at a size is traced for each answer."""

    def function(x):
        return x * 2 if x.shape[0] % 2 else x + 1

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for rows in range(4, 8):
        check(compiled, function, torch.randn(rows, 40))
    assert compiles(fresh) == (2, 4)


def test_sizes_of_zero_and_one(fresh):
    compiled = torch.compile(softmax, fullgraph=True, dynamic=True)
    for rows in (4, 1, 0, 3):
        check(compiled, softmax, torch.randn(rows, 40))
    assert compiles(fresh)[0] == 3


@pytest.mark.parametrize("dynamic", [True, None])
def test_numbers_as_arguments(dynamic):
    def function(x, whole, real):
        return x * whole + real, x[:whole], torch.full((whole, 2), real, device=x.device)

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic)
    for whole, real in ((2, 0.5), (3, 0.5), (3, 1.5), (5, 2.0)):
        check(compiled, function, torch.randn(6, 40), whole, real)


def test_real_numbers_are_arguments_of_kernels(fresh, monkeypatch):
    """Arithmetic with a number that changes is one program; that takes no C++ compiler."""
    monkeypatch.setattr(CppCodeCache, "load_async", None)

    def function(x, factor):
        return x * (factor * 2 + 1) + factor, (x.half() * factor).float() - factor / 2

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for factor in (0.5, 1.5, -2.25, 3.0):
        check(compiled, function, torch.arange(40.0).view(4, 10) / 16, factor)
    assert compiles(fresh) == (1, 1)
    assert fresh["spyre"]["kernel_cache_misses"] == 1


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_numbers_of_the_card(fresh):
    def function(x):
        total = x.sum().item()
        return torch.arange(int(total), device=x.device) * 2, x * total

    compiled = torch.compile(function, fullgraph=True)
    for rows in (2, 5):
        check(compiled, function, torch.full((4,), float(rows)))
    assert compiles(fresh) == (1, 0)


def test_results_are_cached_for_another_process(program):
    code = """
    f = torch.compile(lambda x: x * 2 + x.shape[0], dynamic=True)
    for rows in {rows}:
        assert f(x[:1].repeat(rows, 1)).cpu().unique().tolist() == [2 + rows]
    print(counters["inductor"]["fxgraph_cache_hit"], counters["spyre"]["kernel_cache_misses"])
    """
    program(code.format(rows=(3, 4, 5)))
    assert program(code.format(rows=(5, 3, 4))).split() == ["3", "0"]


# --- training


def same_gradients(mine, theirs):
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-3, atol=1e-3)


def trained(make, loss):
    """A module on the CPU and the same on the card; a function that trains both one step, compiled on the card."""
    module, card = make(), make().to("spyre")
    card.load_state_dict(module.state_dict())
    compiled = torch.compile(loss, fullgraph=True, dynamic=True)

    def step(x):
        module.zero_grad()
        card.zero_grad()
        mine, theirs = x.to("spyre").requires_grad_(), x.clone().requires_grad_()
        compiled(card, mine).backward()
        loss(module, theirs).backward()
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-3)
        same_gradients(card, module)

    return step


def test_training(fresh):
    def make():
        return nn.Sequential(nn.Linear(20, 30), nn.GELU(), nn.LayerNorm(30), nn.Linear(30, 5))

    step = trained(make, lambda module, x: module(x).square().mean() * x.shape[0])
    for rows in (3, 4, 7):
        step(torch.randn(rows, 20))
    assert compiles(fresh) == (1, 6)


def test_training_with_sizes_inside(fresh):
    """Sizes that backward code needs and that no saved tensor has."""

    def loss(module, x):
        y = module(x)
        return (y.reshape(2, -1).sum(1) * x.shape[0]).sum() / (x.shape[1] * 2) + y[: x.shape[0] // 2].sum()

    step = trained(lambda: nn.Linear(3, 4), loss)
    for batch, length in ((4, 5), (6, 9), (8, 12)):
        step(torch.randn(batch, length, 3))
    assert compiles(fresh) == (1, 6)


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


def test_a_sequence_that_grows(fresh):
    block = Block()
    card = Block().to("spyre")
    card.load_state_dict(block.state_dict())
    compiled = torch.compile(card, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for length in (3, 4, 5, 65):
            x = torch.randn(2, length, 32)
            torch.testing.assert_close(compiled(x.to("spyre")).cpu(), block(x), rtol=1e-3, atol=1e-3)
    assert compiles(fresh) == (1, 4)


def test_training_a_sequence_that_grows(fresh):
    step = trained(Block, lambda module, x: module(x).square().mean())
    for batch, length in ((2, 5), (3, 6)):
        step(torch.randn(batch, length, 32))
    assert compiles(fresh) == (1, 4)


def test_decoding(fresh):
    """Keys and values that grow by one token a step."""

    def attend(q, k, v, more_k, more_v):
        k, v = torch.cat([k, more_k], dim=2), torch.cat([v, more_v], dim=2)
        mask = torch.ones(1, k.shape[2], dtype=torch.bool, device=q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask), k, v

    compiled = torch.compile(attend, fullgraph=True, dynamic=True)
    k, v = torch.randn(2, 1, 2, 62, 16)
    card = on_card((k, v))
    for _ in range(4):
        new = torch.randn(3, 1, 2, 1, 16).unbind()
        out, *card = compiled(new[0].to("spyre"), *card, *on_card(new[1:]))
        want, k, v = attend(new[0], k, v, *new[1:])
        torch.testing.assert_close(host((out, *card)), (want, k, v), rtol=1e-4, atol=1e-4)
    assert compiles(fresh) == (1, 4)


# --- memory


def test_inputs_that_change(fresh):
    def function(x, y):
        x.add_(y.shape[0])
        y[1:] *= 2
        return x.sum() + y.sum()

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for rows in (3, 4, 7):
        args = torch.randn(rows, 5), torch.randn(rows + 1, 40)
        card = on_card(args)
        torch.testing.assert_close(compiled(*card).cpu(), function(*args), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(host(card), args)
    assert compiles(fresh) == (1, 3)


def test_inputs_on_one_storage(fresh):
    def function(x, y):
        x.mul_(2)
        return x + y.sum()

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for rows in range(4, 8):
        base = torch.randn(rows, 5)
        card = base.to("spyre")
        got = compiled(card[:2], card[1:])
        torch.testing.assert_close(got.cpu(), function(base[:2], base[1:]), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(card.cpu(), base)


def test_views_with_offsets_that_change(fresh):
    compiled = torch.compile(lambda x: x * 2 + 1, fullgraph=True, dynamic=True)
    base = torch.randn(9, 70)
    card = base.to("spyre")
    for start, stop in ((0, 4), (3, 9), (2, 4)):
        torch.testing.assert_close(compiled(card[start:stop, start:]).cpu(), base[start:stop, start:] * 2 + 1)
    assert compiles(fresh)[1] == 3


def test_places_in_a_storage(fresh):
    """Where as_strided counts from the storage's beginning, code depends on where the tensor begins."""

    def function(x):
        return torch.as_strided(x, (2, x.shape[1]), (x.shape[1], 1), x.storage_offset() + 1) * 2

    compiled = torch.compile(function, dynamic=True)
    for rows in (4, 5):
        base = torch.randn(9, 7 + rows)
        card = base.to("spyre")
        for start in (2, 4):
            torch.testing.assert_close(compiled(card[start : start + rows]).cpu(), function(base[start : start + rows]))


# --- layouts


def test_a_default_layout_follows_the_size(fresh):
    compiled = torch.compile(lambda x, y: x @ y.t(), fullgraph=True, dynamic=True)
    for rows in range(3, 7):
        base = torch.randn(70, 70)
        x, y = base[:rows, 1:], base.t()[:rows, 1:]  # views lie like what they show
        card = base.to("spyre")
        got = compiled(card[:rows, 1:], card.t()[:rows, 1:])
        torch.testing.assert_close(got.cpu(), x @ y.t(), rtol=1e-4, atol=1e-4)
    assert compiles(fresh) == (1, 4)


def test_another_layout_compiles_anew(fresh):
    def laid(rows: int) -> torch.Tensor:
        layout = _C.SpyreTensorLayout([rows, 1, 64], [64, -1, 1], _C.DataFormats.SEN169_FP16)
        return torch.ones(rows, 64, dtype=torch.float16, device="spyre").to(device_layout=layout)

    compiled = torch.compile(lambda x: x + x.shape[0], fullgraph=True, dynamic=True)
    for rows, tensor in ((4, laid(4)), (5, laid(5)), (5, laid(5)), (4, laid(4))):
        assert compiled(tensor).cpu().unique().tolist() == [1 + rows]
    for rows in (4, 5, 6):
        assert compiled(torch.ones(rows, 64, dtype=torch.float16, device="spyre")).cpu().unique().tolist() == [1 + rows]
    assert fresh["stats"]["unique_graphs"] == 3  # one per explicit layout, and one for default layouts of any size


# --- what is not the card's


def test_sizes_across_a_fallback(fresh):
    def function(x):
        values = torch.sort(x[1:] * 2, dim=0)[0]
        return values[: x.shape[0] // 2] + x.shape[0], torch.sort(x[1:])[1]

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    with torch.spyre.fallback("count"):
        for rows in (4, 7, 9):
            check(compiled, function, torch.randn(rows, 5))
    assert compiles(fresh) == (1, 3)


def test_tensors_of_the_cpu(fresh):
    def function(x, c):
        return x * c.shape[0] + (c * 2).to(x.device), c + x.shape[0]

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for rows in (4, 7, 9):
        x, c = torch.randn(rows, 5), torch.randn(rows, 5)
        torch.testing.assert_close(host(compiled(x.to("spyre"), c)), function(x, c))
    assert compiles(fresh) == (1, 3)


def test_branches(fresh):
    def function(x):
        return torch.cond(x.sum() > 0, lambda x: x * x.shape[0], lambda x: x[: x.shape[0]] - 1, (x,))

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for rows in (4, 7, 9):
        for sign in (1, -1):
            check(compiled, function, sign * torch.rand(rows, 5))
    assert compiles(fresh) == (3, 3)  # branches count


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)
def test_sizes_that_depend_on_values(fresh):
    def function(x):
        return (x > 0).nonzero() * x.shape[0], x * x.sum().item()

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    with torch.spyre.fallback("count"):
        for rows in (4, 7, 9):
            check(compiled, function, torch.randn(rows, 5))
    assert compiles(fresh) == (1, 3)


# --- what is kept


@config.patch(specializations_kept=2)
def test_only_so_many_are_kept(fresh):
    compiled = torch.compile(lambda x: x + x.shape[0], dynamic=True)
    for rows, made in ((3, 1), (4, 2), (3, 2), (5, 3), (3, 3), (4, 4)):
        assert compiled(torch.zeros(rows, 5, device="spyre")).cpu().unique().tolist() == [rows]
        assert compiles(fresh) == (1, made)


def test_threads_share_what_is_made(fresh):
    compiled = torch.compile(lambda x: x * 2 + x.shape[0], dynamic=True)
    compiled(torch.zeros(2, 5, device="spyre"))
    sizes = [3, 4, 5, 6] * 3
    results: dict[int, torch.Tensor] = {}

    def run(position):
        results[position] = compiled(torch.zeros(sizes[position], 5, device="spyre")).cpu()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(sizes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for position, rows in enumerate(sizes):
        assert results[position].shape == (rows, 5) and results[position].unique().tolist() == [rows]
    assert compiles(fresh) == (1, 5)


def test_a_size_that_cannot_be_compiled(fresh, monkeypatch):
    from torch_spyre._inductor.fx import partition

    compiled = torch.compile(lambda x: x + 1, dynamic=True)
    compiled(torch.zeros(3, 5, device="spyre"))

    def fail(gm):
        raise ValueError("no such loop")

    with monkeypatch.context() as patched:
        patched.setattr(partition, "partition", fail)
        with pytest.raises(RuntimeError, match=r"could not be compiled for float32\[4, 5\].*no such loop"):
            compiled(torch.zeros(4, 5, device="spyre"))
    assert compiled(torch.zeros(4, 5, device="spyre")).cpu().unique().tolist() == [1]


def test_the_log_tells(caplog):
    compiled = torch.compile(lambda x: x + 1, dynamic=True)
    with caplog.at_level("INFO", "torch_spyre"):
        for rows in (3, 4, 3):
            compiled(torch.zeros(rows, 5, device="spyre"))
    lines = [record.message for record in caplog.records if "specialised" in record.message]
    assert lines == ["specialised for float32[3, 5]", "specialised for float32[4, 5]"]
