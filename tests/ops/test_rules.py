"""What holds for all ops: promotion, in-place and out= forms, empty tensors, PyTorch's own errors, clear refusals."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from tests.ops.grid import Row, compare, run, total

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.int32, torch.bool)
X = torch.linspace(-3, 3, 6 * 65).reshape(6, 65)
Y = torch.linspace(1, 4, 65)


def card(x: torch.Tensor, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return x.to(dtype).to("spyre")


@pytest.mark.parametrize("left, right", itertools.product(DTYPES, DTYPES), ids=lambda d: str(d).removeprefix("torch."))
def test_promotion(left, right):
    """Of tensors, of tensors without dimensions, and of numbers: PyTorch's dtype and its value."""
    row = Row(
        "promotion", lambda x, y: (x + y, x * y[0], torch.where(x > 0, x, y), x + 2, y * 0.5, torch.maximum(x, y))
    )
    inputs = [card(X, left), card(Y, right)]
    compare(run(row.function, inputs, 32), row, inputs)


IN_PLACE = {
    "add_": lambda x, y: x.add_(y),
    "mul_ number": lambda x, y: x.mul_(3),
    "sub_ alpha": lambda x, y: x.sub_(y, alpha=2),
    "div_": lambda x, y: x.div_(y),
    "relu_": lambda x, y: x.relu_(),
    "clamp_": lambda x, y: x.clamp_(-1, 1),
    "exp_": lambda x, y: x.exp_(),
    "masked_fill_": lambda x, y: x.masked_fill_(y > 2, 7),
    "fill_": lambda x, y: x.fill_(2.5),
    "zero_": lambda x, y: x.zero_(),
    "copy_": lambda x, y: x.copy_(y),
    "slice add_": lambda x, y: x[1:, 3:].add_(1),
    "row": lambda x, y: x[2].copy_(y),
    "column": lambda x, y: x[:, 5].mul_(2),
    "steps": lambda x, y: x[::2, ::3].neg_(),
    "transposed": lambda x, y: x.t().add_(1),
    "itself": lambda x, y: x.add_(x),
    "overlap": lambda x, y: x[1:].copy_(x[:-1].clone()),
    "setitem": lambda x, y: x.__setitem__((slice(1, 3), slice(2, 9)), 4.0),
    "setitem index": lambda x, y: x.__setitem__(torch.tensor([0, 3], device=x.device), y),
    "index_add_": lambda x, y: x.index_add_(0, torch.tensor([1], device=x.device), y[None]),
    "index_copy_": lambda x, y: x.index_copy_(0, torch.tensor([1], device=x.device), y[None]),
    "scatter_": lambda x, y: x.scatter_(0, torch.zeros(1, 65, dtype=torch.int64, device=x.device), y[None]),
    "addcmul_": lambda x, y: x.addcmul_(x, y),
    "lerp_": lambda x, y: x.lerp_(y.expand_as(x), 0.5),
    "triu_": lambda x, y: x.triu_(),
    "cumsum_": lambda x, y: x.cumsum_(0),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name, compiled, dtype):
    """The tensor itself changes, also where it is written through a view."""

    def changed(x, y):
        IN_PLACE[name](x, y)
        return x

    given = X.to(dtype).to("spyre").cpu(), Y.to(dtype).to("spyre").cpu()
    row = Row(
        name,
        lambda x, y: changed(x.clone(), y),
        bound=lambda *_: 2**-9 if dtype == torch.float16 else 2**-20,
        roundings=2,
    )
    inputs = [x.to("spyre") for x in given]
    (got,) = run(changed, inputs, 32, compiled)
    compare([got], row, [given[0].to("spyre"), inputs[1]])
    assert torch.equal(inputs[0].cpu(), got.cpu())


OUT = {
    "add": lambda x, y, out: torch.add(x, y, out=out),
    "exp": lambda x, y, out: torch.exp(x, out=out),
    "mm": lambda x, y, out: torch.mm(x[:, :6], x, out=out),
    "cat": lambda x, y, out: torch.cat([x[:3], x[3:]], out=out),
    "cumsum": lambda x, y, out: torch.cumsum(x, 0, out=out),
    "where": lambda x, y, out: torch.where(x > 0, x, y, out=out),
    "clamp": lambda x, y, out: torch.clamp(x, -1, 1, out=out),
}


@pytest.mark.parametrize("layout", ["plain", "transposed", "sliced", "empty"])
@pytest.mark.parametrize("name", OUT)
def test_out(name, layout):
    x, y = card(X), card(Y)
    out = {
        "plain": lambda: torch.zeros(6, 65, dtype=torch.float16, device="spyre"),
        "transposed": lambda: torch.zeros(65, 6, dtype=torch.float16, device="spyre").t(),
        "sliced": lambda: torch.zeros(6, 70, dtype=torch.float16, device="spyre")[:, 2:67],
        "empty": lambda: torch.empty(0, dtype=torch.float16, device="spyre"),
    }[layout]()
    got = OUT[name](x, y, out)
    assert got is out
    row = Row(
        name, lambda x, y: OUT[name](x, y, torch.empty(0, dtype=x.dtype, device=x.device)), bound=lambda x, y: 2**-14
    )
    compare([out], row, [x, y])


EMPTY = {
    "add": (lambda x: x + 1, (0, 3)),
    "sum": (lambda x: x.sum(), (0, 3)),
    "sum 0": (lambda x: x.sum(0), (0, 3)),
    "mean": (lambda x: x.mean(), (0,)),
    "matmul": (lambda x: x @ x.t(), (0, 3)),
    "matmul of nothing": (lambda x: x @ x.t(), (3, 0)),
    "cat": (lambda x: torch.cat([x, x.new_ones(2, 3)]), (0, 3)),
    "softmax": (lambda x: x.softmax(-1), (0, 3)),
    "any": (lambda x: x.any(), (0,)),
    "all": (lambda x: x.all(), (0,)),
    "slice": (lambda x: x[3:] * 2, (3, 4)),
    "pad": (lambda x: F.pad(x, (1, 1)), (2, 0)),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", EMPTY)
def test_empty(name, compiled):
    function, size = EMPTY[name]
    x = torch.empty(size, dtype=torch.float16, device="spyre")
    got = run(function, [x], 32, compiled)
    compare(got, Row(name, function), [x])


SCALARS = {
    "sum": torch.sum,
    "amax": torch.amax,
    "softmax": lambda x: x.softmax(0),
    "cumsum": lambda x: x.cumsum(0),
    "argmax": torch.argmax,
    "topk": lambda x: tuple(x.topk(1)),
    "unsqueeze": lambda x: x.unsqueeze(0) + 1,
    "expand": lambda x: x.expand(3, 65) * 2,
    "index": lambda x: x[None][torch.tensor([0, 0], device=x.device)],
    "flip": lambda x: x.flip([]),
    "sort of": lambda x: torch.stack([x, x + 1]),
    "cast": lambda x: x.to(torch.int64),
    "item of all": lambda x: x.all(),
    "var": lambda x: x.var(correction=0),
}


@pytest.mark.parametrize("name", SCALARS)
def test_without_dimensions(name):
    x = torch.tensor(2.5, dtype=torch.float16).to("spyre")
    compare(run(SCALARS[name], [x], 32), Row(name, SCALARS[name]), [x])


WRONG = {
    "shapes": (lambda x: x + x[:, :64], "must match the size of tensor b"),
    "mm": (lambda x: x.mm(x), "cannot be multiplied"),
    "cat": (lambda x: torch.cat([x, x[:, :3]]), "must match except in dimension"),
    "dim": (lambda x: x.sum(5), "Dimension out of range"),
    "view": (lambda x: x.view(7, 7), "invalid for input of size"),
    "dtype": (lambda x: x.bitwise_and(1), "not implemented for 'Half'"),
    "linear": (lambda x: F.linear(x, x[:, :3]), "cannot be multiplied"),
    "index": (lambda x: x.index_select(0, x), "index_select"),
    "in place cast": (lambda x: x.int().add_(0.5), "can't be cast"),
    "broadcast in place": (lambda x: x[0].clone().add_(x), "doesn't match the broadcast shape"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_pytorchs(name):
    function, message = WRONG[name]
    for x in (X.half(), card(X)):
        with torch.spyre.fallback("count"), pytest.raises((RuntimeError, IndexError), match=message):
            function(x)
    torch.spyre.reset_fallback_counts()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_an_index_outside(compiled):
    for function, x in (
        (lambda x, i: x[i], card(X)),
        (lambda x, i: F.embedding(i, x), card(X)),
        (lambda x, i: x[i], card(X[:1])),
    ):
        with pytest.raises((IndexError, RuntimeError), match="out of|outside|range"):
            run(function, [x, torch.tensor([0, 6], device="spyre")], 32, compiled)
            torch.spyre.synchronize()


def test_float64_is_refused():
    with pytest.raises((TypeError, RuntimeError), match="float64|Double"):
        X.double().to("spyre")
    with pytest.raises((TypeError, RuntimeError, NotImplementedError), match="float64|Double"):
        card(X).double()


def test_int64_that_does_not_fit():
    x = torch.tensor([2**30, 5]).to("spyre")
    with pytest.raises(ValueError, match="does not fit the 32 bits"):
        (x * 4).cpu()


@pytest.mark.parametrize("cores", [1, 5, 32])
def test_a_long_sum_has_one_order(cores):
    """4097 by 1000 numbers: more than one core's share, the same bits for all."""
    x = torch.linspace(-1, 1, 4097 * 1000).reshape(4097, 1000).half().to("spyre")
    row = Row("sum", torch.sum, bound=total(torch.sum, lambda x: x.numel()))
    got = run(torch.sum, [x], cores)
    compare(got, row, [x])
    assert torch.equal(got[0].cpu(), run(torch.sum, [x], 2)[0].cpu())


@pytest.mark.xfail(strict=True, reason="sums along sticks and across them have different orders")
def test_a_sum_has_one_order_in_all_layouts():
    x = torch.linspace(-3, 3, 64 * 63).reshape(64, 63).half().to("spyre").t()

    def sums(x):
        return (x.float() ** 2).sum(-1)

    assert torch.equal(run(sums, [x], 32, True)[0].cpu(), run(sums, [x.contiguous()], 32, True)[0].cpu())


def test_compiled_results_with_gaps():
    x = torch.stack([card(X), card(X)], -1)[..., 1]
    run(lambda x: x.select_scatter(x[0], 0, 1), [x], 32, True)


@pytest.mark.parametrize("compiled", [False, True])
def test_products_of_two_dtypes_are_errors(compiled):
    product = torch.compile(torch.mm) if compiled else torch.mm
    with torch.spyre.fallback("count"), pytest.raises(RuntimeError, match="same dtype"):
        product(torch.ones(3, 3).to("spyre"), torch.ones(3, 3).half().to("spyre"))
    torch.spyre.reset_fallback_counts()  # the error is the host's
