"""Reading and writing through index tensors."""

import pytest
import torch
import torch.nn.functional as F

from tests.ops.grid import FLOATS, LAYOUTS, Case, Row, check, check_together, exact, ids, mask, real, total

# A shape is (rows of the table, columns, how many indices).
SHAPES = ((3, 65, 7), (64, 64, 64), (1, 1, 1), (129, 3, 127), (65, 1000, 5), (1000, 63, 3), (127, 129, 65))
BOTH = (*FLOATS, torch.int64)
LOSSLESS = tuple(name for name in LAYOUTS if name != "expanded")  # which of several values stays is not said


def rows(s):
    return s[0]


def columns(s):
    return s[1]


def count(s):
    return s[2:]


def table(s):
    return s[:2]


def values(s):
    return (s[2], s[1])


def row(name, function, *inputs, bound=exact, dtypes=BOTH, **more):
    return Row(name, function, inputs or (real(of=table), ids(rows, count)), bound, dtypes, shapes=SHAPES, **more)


def adding(name, function, *inputs):
    return row(name, function, *inputs, bound=total(function, lambda *t: t[-1].numel() + 1))


def permuted(s):
    """As many different rows as there are."""
    return (s[0],)


def order(shape, dtype, generator):
    return torch.randperm(shape[0], generator=generator)


def order_of_all(shape, dtype, generator):
    return torch.randperm(shape[0] * shape[1], generator=generator).reshape(table(shape))


def without_self(name):
    """Sums of few values: the mean of integers rounds down."""
    return adding(
        f"scatter_reduce {name} alone",
        lambda x, v, i: x.scatter_reduce(1, i, v, name, include_self=False),
        whole,
        real(of=lambda s: (s[0], s[2])),
        ids(columns, lambda s: (s[0], s[2])),
    )


def by_rows(name):
    return adding(f"index_reduce {name}", lambda x, v, i: x.index_reduce(0, i, v, name), whole, some, ids(rows, count))


whole, some = real(of=table), real(of=values)
same = real(of=table)

ROWS = [
    row("embedding", lambda x, i: F.embedding(i, x)),
    row("embedding 2", lambda x, i: F.embedding(i, x), whole, ids(rows, lambda s: (2, 3))),
    row("embedding padded", lambda x, i: F.embedding(i, x, padding_idx=0)),
    row("index", lambda x, i: x[i]),
    row("index negative", lambda x, i: x[i], whole, ids(rows, count, low=-1)),
    row("index 1", lambda x, i: x[:, i], whole, ids(columns, count)),
    row("index int32", lambda x, i: x[i.int()]),
    row("index both", lambda x, i, j: x[i, j], whole, ids(rows, count), ids(columns, count)),
    row("index outer", lambda x, i, j: x[i[:, None], j], whole, ids(rows, lambda s: (5,)), ids(columns, count)),
    row(
        "index apart",
        lambda x, i, j: x.unflatten(0, (1, -1))[:, i, None, j],
        whole,
        ids(rows, count),
        ids(columns, count),
    ),
    row("index matrix", lambda x, i: x[i], whole, ids(rows, lambda s: (2, 3))),
    row("index of 3", lambda x, i: x[:, i], real(of=lambda s: (2, *table(s))), ids(rows, count)),
    row("index of transposed", lambda x, i: x.t()[i], whole, ids(columns, count)),
    row("index of slice", lambda x, i: x[:, 1:][i], real(of=lambda s: (s[0], s[1] + 1)), ids(rows, count)),
    row("index_select", lambda x, i: x.index_select(0, i)),
    row("index_select 1", lambda x, i: x.index_select(1, i), whole, ids(columns, count)),
    row("gather", lambda x, i: x.gather(0, i), whole, ids(rows, values)),
    row("gather 1", lambda x, i: x.gather(1, i), whole, ids(columns, lambda s: (s[0], s[2]))),
    row("gather fewer", lambda x, i: x.gather(1, i), whole, ids(columns, lambda s: (1, s[2]))),
    row("take_along_dim", lambda x, i: x.take_along_dim(i, 1), whole, ids(columns, lambda s: (s[0], s[2]))),
    row("flip", lambda x: x.flip(0), whole),
    row("flip 1", lambda x: x.flip(-1), whole),
    row("flip both", lambda x: x.flip(0, 1), whole),
    row("index_put", lambda x, v, i: x.index_put((i,), v), whole, same, order, layouts=LOSSLESS),
    row("index_put number", lambda x, i: x.index_put((i,), torch.tensor(2, dtype=x.dtype, device=x.device))),
    row("index_put row", lambda x, v, i: x.index_put((i,), v), whole, real(of=lambda s: s[1:2]), ids(rows, count)),
    row(
        "index_put 1",
        lambda x, v, i: _set(x, (slice(None), i), v),
        whole,
        real(of=lambda s: (s[0], 1)),
        ids(columns, count),
    ),
    row("setitem", lambda x, i: _set(x, i), whole, ids(rows, count)),
    row("index_copy", lambda x, v, i: x.index_copy(0, i, v), whole, same, order, layouts=LOSSLESS),
    row("index_fill", lambda x, i: x.index_fill(0, i, 3)),
    row("scatter", lambda x, v, i: x.scatter(0, i[:, None].expand(v.shape), v), whole, same, order, layouts=LOSSLESS),
    row("scatter number", lambda x, i: x.scatter(0, i, 1.0 if x.is_floating_point() else 1), whole, ids(rows, values)),
    row("scatter fewer", lambda x, v, i: x.scatter(1, i, v), whole, same, ids(columns, lambda s: (s[0], 1))),
    adding(
        "index_put accumulated", lambda x, v, i: x.index_put((i,), v, accumulate=True), whole, some, ids(rows, count)
    ),
    adding(
        "index_put all accumulated",
        lambda x, v, i, j: x.index_put((i, j), v, accumulate=True),
        whole,
        real(of=count),
        ids(rows, count),
        ids(columns, count),
    ),
    adding("index_add", lambda x, v, i: x.index_add(0, i, v), whole, some, ids(rows, count)),
    adding("index_add alpha", lambda x, v, i: x.index_add(0, i, v, alpha=2), whole, some, ids(rows, count)),
    adding(
        "index_add 1", lambda x, v, i: x.index_add(1, i, v), whole, real(of=lambda s: (s[0], s[2])), ids(columns, count)
    ),
    adding("scatter_add", lambda x, v, i: x.scatter_add(0, i, v), whole, some, ids(rows, values)),
    adding(
        "scatter_add 1",
        lambda x, v, i: x.scatter_add(1, i, v),
        whole,
        real(of=lambda s: (s[0], s[2])),
        ids(columns, lambda s: (s[0], s[2])),
    ),
    adding("scatter_reduce sum", lambda x, v, i: x.scatter_reduce(0, i, v, "sum"), whole, some, ids(rows, values)),
    row("scatter_reduce amax", lambda x, v, i: x.scatter_reduce(0, i, v, "amax"), whole, some, ids(rows, values)),
    row("scatter_reduce amin", lambda x, v, i: x.scatter_reduce(0, i, v, "amin"), whole, some, ids(rows, values)),
    *(without_self(name) for name in ("sum", "prod", "mean", "amax", "amin")),
    *(by_rows(name) for name in ("prod", "mean", "amax", "amin")),
    adding("scatter_reduce mean", lambda x, v, i: x.scatter_reduce(0, i, v, "mean"), whole, some, ids(rows, values)),
    adding(
        "scatter add", lambda x, v, i: x.scatter(1, i, v, reduce="add"), whole, same, ids(columns, lambda s: (s[0], 1))
    ),
    adding(
        "scatter multiply",
        lambda x, i: x.scatter(0, i, 2.0 if x.is_floating_point() else 2, reduce="multiply"),
        whole,
        ids(rows, lambda s: (1, s[1])),
    ),
    row("take", lambda x, i: x.take(i - 1), whole, ids(rows, values)),
    row("put", lambda x, v, i: x.put(i, v), whole, same, order_of_all, layouts=LOSSLESS),
    adding("put accumulated", lambda x, v, i: x.put(i - 1, v, accumulate=True), whole, some, ids(rows, values)),
    row("index_fill negative", lambda x, i: x.index_fill(1, i - x.shape[1], 3), whole, ids(columns, count)),
    row("masked", lambda x, m: _set(x, m, 2), whole, mask(table)),
    row("masked rows", lambda x, v, m: _set(x, m, v), whole, real(of=lambda s: (1, s[1])), mask(permuted)),
    row("masked row", lambda x, v, m: _set(x, m, v), whole, real(of=lambda s: s[1:2]), mask(permuted)),
    row("masked columns", lambda x, m: _set(x, (slice(None), m), 2), whole, mask(lambda s: s[1:2])),
    row("masked_scatter", lambda x, v, m: x.masked_scatter(m, v), whole, same, mask(table)),
    row("masked_scatter broadcast", lambda x, v, m: x.masked_scatter(m, v), whole, same, mask(lambda s: s[1:2])),
]

# Tensors without dimensions are indexed as if they had one.
SCALARS = {
    "gather": lambda x, v, i: x.gather(0, i),
    "take": lambda x, v, i: x.take(i),
    "take negative": lambda x, v, i: x.take(i - 1),
    "put": lambda x, v, i: x.put(i, v),
    "index_select": lambda x, v, i: x.index_select(0, i),
    "index_copy": lambda x, v, i: x.index_copy(0, i, v),
    "index_fill": lambda x, v, i: x.index_fill(0, i, 3),
    "index_fill tensor": lambda x, v, i: x.index_fill(0, i, v),
    "index_add": lambda x, v, i: x.index_add(0, i, v, alpha=2),
    "index_reduce": lambda x, v, i: x.index_reduce(0, i, v, "amax"),
    "index_put": lambda x, v, i: x.unsqueeze(0).index_put((i,), v),
    "scatter": lambda x, v, i: x.scatter(0, i, v),
    "scatter number": lambda x, v, i: x.scatter(0, i, 2),
    "scatter_add": lambda x, v, i: x.scatter_add(0, i, v),
    "scatter_reduce": lambda x, v, i: x.scatter_reduce(0, i, v, "mean", include_self=False),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_scalars(compiled: bool) -> None:
    def all_of(x: torch.Tensor, v: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        return [function(x, v, i) for function in SCALARS.values()]

    inputs = torch.tensor(5.0), torch.tensor(-2.0), torch.tensor(0)
    torch._dynamo.reset()
    got = (torch.compile(all_of, fullgraph=True) if compiled else all_of)(*(x.to("spyre") for x in inputs))
    for name, g, w in zip(SCALARS, got, all_of(*inputs), strict=True):
        assert torch.equal(g.cpu(), w), name


NOTHING = {
    "index": lambda x, v, i: x[i],
    "gather": lambda x, v, i: x.gather(0, i[:, None].expand(0, 3)),
    "take": lambda x, v, i: x.take(i),
    "put": lambda x, v, i: x.put(i, v.flatten()),
    "embedding": lambda x, v, i: F.embedding(i, x),
    "index_select": lambda x, v, i: x.index_select(0, i),
    "index_copy": lambda x, v, i: x.index_copy(0, i, v),
    "index_fill": lambda x, v, i: x.index_fill(0, i, 3),
    "index_add": lambda x, v, i: x.index_add(0, i, v),
    "index_put": lambda x, v, i: x.index_put((i,), v),
    "index_put accumulated": lambda x, v, i: x.index_put((i,), v, accumulate=True),
    "scatter": lambda x, v, i: x.scatter(0, i[:, None].expand(0, 3), v),
    "scatter_reduce": lambda x, v, i: x.scatter_reduce(0, i[:, None].expand(0, 3), v, "sum", include_self=False),
    "masked": lambda x, v, i: _set(x[:0], x[:0] > 0, 1),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_no_indices(compiled: bool) -> None:
    def all_of(x: torch.Tensor, v: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        return [function(x, v, i) for function in NOTHING.values()]

    inputs = torch.arange(6.0).reshape(2, 3), torch.empty(0, 3), torch.empty(0, dtype=torch.int64)
    torch._dynamo.reset()
    got = (torch.compile(all_of, fullgraph=True) if compiled else all_of)(*(x.to("spyre") for x in inputs))
    for name, g, w in zip(NOTHING, got, all_of(*inputs), strict=True):
        assert g.shape == w.shape and torch.equal(g.cpu(), w), name


def test_indices_of_the_host() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    i = torch.tensor([2, 0])
    y = x.to("spyre")
    assert torch.equal(y[i].cpu(), x[i]) and torch.equal(y[:, i].cpu(), x[:, i])
    y[i] = 1
    x[i] = 1
    assert torch.equal(y.cpu(), x)


def test_embeddings_of_a_limited_length() -> None:
    weight, i = torch.randn(5, 6), torch.tensor([[0, 3], [3, 1]])
    for norm in (1.0, 2.0, float("inf")):
        here, there = weight.clone(), weight.to("spyre")
        want = F.embedding(i, here, max_norm=0.5, norm_type=norm)
        torch.testing.assert_close(F.embedding(i.to("spyre"), there, max_norm=0.5, norm_type=norm).cpu(), want)
        torch.testing.assert_close(there.cpu(), here)


def test_gradients_by_frequency() -> None:
    i = torch.tensor([[0, 3], [3, 1]])
    gradients = []
    for device in ("cpu", "spyre"):
        weight = torch.ones(5, 6).to(device).requires_grad_()
        F.embedding(i.to(device), weight, padding_idx=1, scale_grad_by_freq=True).sum().backward()
        gradients.append(weight.grad.cpu())
    assert torch.equal(*gradients)


def _set(x, i, v=0):
    x = x.clone()
    x[i] = v
    return x


def test_eager(case: Case) -> None:
    check(case)


def test_compiled(cases: list[Case]) -> None:
    check_together(cases)


@pytest.mark.parametrize("shape", [(5, 5), (3, 4, 5), (130,), (0, 3), ()])
@pytest.mark.parametrize("size", [0, 1, 40])
def test_nonzero_static(shape, size):
    x = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(1)).half()

    def function(x):
        return torch.nonzero_static(x, size=size, fill_value=7)

    with torch.spyre.fallback("error"):
        for form in (function, torch.compile(function)):
            assert torch.equal(form(x.to("spyre")).cpu(), function(x))


def test_narrow_copy():
    x = torch.arange(24.0).view(4, 6)
    with torch.spyre.fallback("error"):
        assert torch.equal(torch.narrow_copy(x.to("spyre"), 1, 2, 3).cpu(), x[:, 2:5])
