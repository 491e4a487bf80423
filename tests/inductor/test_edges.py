"""Corners: odd reshapes, dtypes that share a format, numbers, indices, threads, and what a cache update costs."""

import pytest
import torch
import torch.nn.functional as F

A = torch.arange(-6, 6, dtype=torch.int32).view(4, 3)
X = torch.linspace(-3, 3, 6 * 70).view(6, 70)
TENTH = torch.full((3,), 0.1, dtype=torch.float16)
ways = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


@ways
@pytest.mark.parametrize(
    "function, x",
    [
        (lambda x: x.view(101, 100) + 1, torch.linspace(-1, 1, 10100).view(100, 101)),
        (lambda x: x.view(999, 1000) * 2, torch.linspace(-1, 1, 999000).view(1000, 999)),
        (lambda x: x.t().reshape(70, 6).t(), X),
        (lambda a: a.amax(1), A),
        (lambda a: a.max(1)[0], A),
        (lambda a: torch.full_like(a, 2.7) + a, A),
        (lambda a: a.clamp(-2.5, 3.5), A),
        (lambda x: x.t().flip(0).as_strided((4,), (1,), 0), X),
        (lambda x: x.clone().as_strided((6, 2), (70, 1), 1), X),
        (lambda x: torch.as_strided_scatter(x, x[0, :3], (3,), (1,), 5), X),
        (lambda h: h == 0.1, TENTH),
        (lambda h: h >= 0.1, TENTH),
        (lambda x: x.clone().index_put_((torch.tensor([1, 3], device=x.device),), x[0]) + x, X),
    ],
)
def test_exact_values(function, x, compiled):
    with torch.spyre.fallback("error"):
        result = (torch.compile(function) if compiled else function)(x.to("spyre"))
    want = function(x)
    assert result.dtype == want.dtype and torch.equal(result.cpu(), want)


def _put(x, at, values):
    x = x.clone()
    x.view(10, 42)[at] = values
    return x


@ways
@pytest.mark.parametrize(
    "function",
    [
        lambda x, at: F.embedding(at, x.view(6, 70)),  # rows of 70 in sticks of 32 or 64
        lambda x, at: x.view(10, 42).index_select(0, at),
        lambda x, at: x.view(14, 30).gather(0, at.view(-1, 1).expand(-1, 3)),
        lambda x, at: x.view(6, 70).scatter(0, at.view(-1, 1), x[7:8].view(1, 1).expand(3, 1)),
        lambda x, at: x.view(3, 20, 7).diagonal(0, 0, 1).index_select(1, at[:2] - 1),  # an index along two dimensions
        lambda x, at: x.view(3, 20, 7).diagonal(0, 0, 1).index_copy(1, at[:2] - 1, x.view(210, 2)[:7]),
        lambda x, at: _put(x, at, x[:42]),
        lambda x, at: _put(x, at, x[:3].view(3, 1)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_indices_into_views(function, dtype, compiled):
    """What an index moves along is no dimension of how the tensor lies."""
    x, at = torch.arange(420).remainder(113).to(dtype), torch.tensor([1, 3, 2])
    with torch.spyre.fallback("error"):
        result = (torch.compile(function) if compiled else function)(x.to("spyre"), at.to("spyre"))
    assert torch.equal(result.cpu(), function(x, at))


@ways
def test_copies_of_a_part_begin_at_zero(compiled):
    def corner(x):
        return x.clone().as_strided((3, 2), (70, 1), 1) + 1

    result = (torch.compile(corner) if compiled else corner)(X.to("spyre")[2:])
    assert torch.equal(result.cpu(), corner(X[2:]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.clone(),) * 2,
        lambda x: (lambda c: (c, c[2:], c.t()))(x.clone()),
        lambda x: (lambda c: (c, c[:, 3].unsqueeze(0)))((x * 2).clone()),
        lambda x: (x - 1, (x + 1).as_strided((2, 3), (2, 0), 7)),
    ],
)
def test_views_of_clones_share_their_memory(function):
    def changed(results):
        results[0][0].add_(10)
        return [(r.tolist(), r.stride(), r.storage_offset()) for r in results]

    with torch.spyre.fallback("error"):
        assert changed(torch.compile(function)(X.to("spyre"))) == changed(function(X))


@ways
def test_the_smallest_half_is_finite(compiled):
    def masked(h):
        return h.masked_fill(h > 0, torch.finfo(torch.float16).min)

    result = (torch.compile(masked) if compiled else masked)(TENTH.to("spyre"))
    assert result.cpu().tolist() == [-65472.0] * 3


LOWEST = torch.finfo(torch.bfloat16).min
ON_CARD = torch.tensor(LOWEST, dtype=torch.bfloat16).to("spyre").item()


@ways
@pytest.mark.parametrize(
    "op",
    [
        lambda z: z.masked_fill(z == 0, LOWEST),
        lambda z: torch.where(z == 0, LOWEST, z),
        lambda z: torch.full_like(z, LOWEST),
        lambda z: torch.full((3,), LOWEST, dtype=z.dtype, device=z.device),
        lambda z: z.clone().fill_(LOWEST),
        lambda z: F.pad(z[:1], (1, 1), value=LOWEST)[::2].repeat(2)[:3],
        lambda z: F.threshold(z, 1.0, LOWEST),
        lambda z: z.scatter(0, torch.arange(3, device=z.device), LOWEST),
        lambda z: z.index_fill(0, torch.arange(3, device=z.device), LOWEST),
        lambda z: z.index_put((z == 0,), torch.tensor(LOWEST, dtype=z.dtype, device=z.device)),
        lambda z: (z - float("inf")).nan_to_num(),
        lambda z: (z - float("inf")).clamp(min=LOWEST),
        lambda z: F.hardtanh(z - float("inf"), LOWEST, 0.0),
        lambda z: (1.0 - z) * LOWEST,
        lambda z: z + LOWEST,
    ],
)
def test_the_lowest_bfloat16_is_the_cards_lowest(op, compiled):
    """A finite number becomes a finite element; what is computed past the largest is infinite."""
    zeros = torch.zeros(3, dtype=torch.bfloat16)
    assert op(zeros).tolist() == [LOWEST] * 3
    with torch.spyre.fallback("error"):
        result = (torch.compile(op) if compiled else op)(zeros.to("spyre"))
    assert result.cpu().tolist() == [ON_CARD] * 3 and -8.6e9 < ON_CARD < -8.5e9


@ways
def test_a_row_that_is_masked_whole(compiled):
    def masked(z):
        return z.masked_fill(z == 0, LOWEST).softmax(1)

    zeros = torch.zeros(2, 4, dtype=torch.bfloat16)
    assert (torch.compile(masked) if compiled else masked)(zeros.to("spyre")).tolist() == [[0.25] * 4] * 2


@ways
def test_past_the_largest_half_is_infinite(compiled):
    def changed(h):
        rows, some = h.clone(), h.clone()
        rows[:1] = -1e9
        some[h > 0] = -1e9
        return torch.where(h > 0, h, -1e9), torch.where(h > 0, 1e9, h), rows, some, h * 1e9, h + 1e9

    h = torch.tensor([[-1.0, 2.0], [3.0, -4.0]], dtype=torch.float16)
    with torch.spyre.fallback("error"):
        results = (torch.compile(changed) if compiled else changed)(h.to("spyre"))
    for result, want in zip(results, changed(h), strict=True):
        assert torch.equal(result.cpu(), want)


@ways
@pytest.mark.parametrize(
    "op",
    [
        lambda x: x.clamp(min=float("nan")),
        lambda x: x.clamp(max=float("nan")),
        lambda x: x.clamp_min(float("nan")),
        lambda x: x.half().clamp(0.0, float("nan")),
        lambda x: x.int().clamp(min=float("nan")),
        lambda x: torch.add(x > 0, x < 0, alpha=0),
        lambda x: torch.add(x > 0, x < 0, alpha=False),
        lambda x: torch.add(x > 0, x < 0, alpha=3),
        lambda x: torch.sub((x > 0).int(), (x < 0).int(), alpha=0),
        lambda x: torch.addmm(x[:, :6], x / 0, x.t(), alpha=0),
        lambda x: torch.addmm(x[:, :6], x / 0, x.t(), alpha=0, beta=3),
        lambda x: torch.addmv(x[:, 0], x / 0, x[0], alpha=0, beta=0),
        lambda x: torch.tril_indices(4, 5, 1, device=x.device),
        lambda x: torch.triu_indices(5, 4, device=x.device),
    ],
)
def test_numbers_that_stand_out(op, compiled):
    result = (torch.compile(op) if compiled else op)(X.to("spyre"))
    want = op(X)
    assert result.dtype == want.dtype and torch.equal(result.cpu().isnan(), want.isnan())
    assert torch.equal(result.cpu().nan_to_num(), want.nan_to_num())


@ways
@pytest.mark.parametrize("exponent", [2**31 - 1, -(2**31) + 1, 2**31])
def test_exponents_that_fp32_does_not_tell_apart(exponent, compiled):
    def raised(x):
        return x.pow(exponent)

    result = (torch.compile(raised) if compiled else raised)(X.to("spyre")).cpu()
    assert torch.equal(result, raised(X.double()).float())


@ways
@pytest.mark.parametrize(
    "op",
    [
        lambda x, at: F.embedding(at, x),
        lambda x, at: x.gather(0, at.view(-1, 1)),
        lambda x, at: x.index_select(0, at),
        lambda x, at: x.index_copy(0, at, x[:1]),
        lambda x, at: x.scatter(0, at.view(-1, 1), 1.0),
    ],
)
def test_negative_indices_are_errors_where_pytorch_has_none(op, compiled):
    with pytest.raises(IndexError, match="out of bounds for a dimension of 6"):
        (torch.compile(op) if compiled else op)(X.to("spyre"), torch.tensor([-1]).to("spyre")).cpu()


@ways
@pytest.mark.parametrize(
    "update",
    [
        lambda cache, at, new: cache.index_copy_(0, at, new),
        lambda cache, at, new: cache.index_put_((at,), new),
        lambda cache, at, new: cache.__setitem__(slice(4, 6), new),
    ],
    ids=["index_copy_", "index_put_", "slice"],
)
def test_an_update_costs_what_it_writes(update, compiled):
    """Not what the cache holds: 64 MiB take longer to copy than the limit."""
    cache = torch.zeros(8192, 4096, dtype=torch.float16, device="spyre")
    at, new = torch.tensor([4, 5]).to("spyre"), torch.ones(2, 4096, dtype=torch.float16, device="spyre")
    function = torch.compile(update) if compiled else update
    function(cache, at, new)
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    start.record()
    function(cache, at, new)
    end.record()
    torch.spyre.synchronize()
    assert start.elapsed_time(end) < 0.1
    assert cache[3:7].cpu().sum(1).tolist() == [0, 4096, 4096, 0]


def test_threads_compile_eager_ops(program):
    code = """
        import threading, torch
        x = torch.randn(40, 70).to("spyre")
        def work():
            (x * 2.5).softmax(-1).cpu(); (x.exp() @ x.t()).cpu()
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]; [t.join() for t in threads]
        print(torch.compile(lambda t: t + 1)(x.cpu()[:1, :1] * 0).item())
    """
    assert program(code) == "1.0\n"


def test_frames_that_dynamo_gives_up_run_eagerly():
    @torch.compile
    def thrice(x):
        for _ in range(3):
            try:
                print(end="")
            finally:
                x = x.sin()
        return x

    torch.testing.assert_close(thrice(X.to("spyre")).cpu(), X.sin().sin().sin())


def test_two_cards_in_one_graph(program):
    code = """
        import torch
        f = lambda t: torch.ones(3, device="spyre:1") + t.to("spyre:1").sum()
        print(torch.compile(f)(torch.ones(4, device="spyre:0")).cpu().tolist())
    """
    assert program(code, AIU_WORLD_SIZE="2") == "[5.0, 5.0, 5.0]\n"


@pytest.mark.parametrize(("size", "stride"), [((5, 5), (2, 1)), ((5, 5, 5), (2, 0, 1)), ((2, 3), (1, 2))])
def test_an_empty_tensor_may_overlap_itself(size, stride):
    made = torch.compile(lambda: torch.empty_strided(size, stride, device="spyre"))()
    assert (made.shape, made.stride()) == (size, stride)
