"""Ops that the card has not, tensors of the CPU, copies between devices and random numbers inside compiled graphs."""

import warnings

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F
from torch.utils import _pytree as pytree


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.spyre.reset_fallback_counts()
    torch.manual_seed(0)
    with torch.spyre.fallback("warn"):
        yield


def host(tree):
    return pytree.tree_map(lambda v: v.cpu() if isinstance(v, torch.Tensor) else v, tree)


def check(function, *args, limit: float = 1e-4, **options):
    """Compiled on the card as on the CPU; gives the ops that fell back."""
    card = [arg.to("spyre") for arg in args]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = torch.compile(function, **options)(*card)
    torch.testing.assert_close(host(got), function(*args), rtol=limit, atol=limit)
    warned = [w for w in caught if issubclass(w.category, torch.spyre.FallbackWarning)]
    fallen = torch.spyre.fallback_counts()
    assert bool(warned) == bool(fallen)
    return fallen


UNSUPPORTED = {
    "sort": lambda x: torch.sort(x * 2, dim=1)[0] + 1,
    "sort's indices": lambda x: (x * 2).argsort(dim=0, stable=True) + 1,
    "qr": lambda x: torch.linalg.qr(x * 2)[1].abs() + 1,
    "kthvalue": lambda x: [t + 1 for t in (x * 2).kthvalue(3, dim=1)],
    "histogram": lambda x: torch.histc(x * 2, 10, -8, 8) + 1,
    "in place": lambda x: (x * 2).cummax(1)[0].sort()[0] - x,
}


@pytest.mark.parametrize("function", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_ops_that_the_card_has_not(function):
    assert check(function, torch.randn(6, 6), fullgraph=True)


def test_what_is_around_them_stays_on_the_card():
    def function(x):
        y = torch.sort(x * 2, dim=1)[0]
        return y.exp() + x.sin(), (x * 2).sum()

    _, (code,) = run_and_get_code(torch.compile(function, fullgraph=True), torch.randn(4, 64).to("spyre"))
    assert code.count("= spyre_kernel_") == 2
    assert set(torch.spyre.fallback_counts()) == {"aten::sort.stable"}


def test_refused_where_asked():
    with torch.spyre.fallback("error"), pytest.raises(NotImplementedError, match="aten::sort.stable has no kernel"):
        torch.compile(lambda x: torch.sort(x + 1)[0])(torch.randn(4).to("spyre"))


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_refusal_names_the_line(dynamic):
    def function(x):
        y = x + 1
        return torch.sort(y)[0]

    with torch.spyre.fallback("error"), pytest.raises(NotImplementedError, match="test_fallbacks.py.*in function"):
        torch.compile(function, dynamic=dynamic)(torch.randn(4).to("spyre"))


def test_a_size_that_depends_on_values():
    check(lambda x: (x > 0).nonzero() * 2, torch.randn(4, 5))
    check(lambda x: x[x > 0] * 2, torch.randn(4, 5))


def test_a_number_leaves_the_graph():
    def function(x):
        if x.sum().item() > 0:
            return x * 2
        return x - 1

    check(function, torch.ones(4))
    check(function, -torch.ones(4))


def test_views_around_a_fallback():
    """Fallback reads a view of what a kernel made; kernels read views of what the fallback gave."""

    def function(x):
        y = (x * 2).t()[1:4]
        z, at = torch.sort(y, dim=1)
        return z[:, 1:].t() + 1, at.reshape(-1) * 2, y + z

    check(function, torch.randn(5, 6), fullgraph=True)


def test_a_fallback_between_changes():
    def function(x):
        x.add_(1)
        y = torch.sort(x, dim=1)[0]
        x.mul_(2)
        return y + x, torch.sort(x, dim=0)[0]

    want = torch.randn(5, 6)
    got = want.clone().to("spyre")
    torch.testing.assert_close(host(torch.compile(function)(got)), function(want))
    torch.testing.assert_close(got.cpu(), want)


# --- devices


def test_cpu_and_card_tensors_in_one_graph():
    def function(x, c):
        return x * 2, c * 2, (x + 1).cpu() + c, c.to("spyre") * x

    x, c = torch.randn(4, 5), torch.randn(4, 5)
    got = torch.compile(function, fullgraph=True)(x.to("spyre"), c)
    torch.testing.assert_close(host(got), (x * 2, c * 2, x + 1 + c, c * x))
    assert [t.device.type for t in got] == ["spyre", "cpu", "cpu", "spyre"]
    assert torch.spyre.fallback_counts() == {}


@pytest.mark.parametrize("ci", ["", "true"])
def test_there_and_back(ci, monkeypatch):
    monkeypatch.setenv("CI", ci)  # where it is set, Inductor refuses fallbacks of ops that it would take apart
    torch._dynamo.reset()

    def function(x):
        y = (x * 2).cpu().flip(0).to("spyre")
        return y + x, y.to("cpu", torch.float16), x.to("spyre")

    x = torch.randn(4, 5)
    got = torch.compile(function, fullgraph=True)(x.to("spyre"))
    torch.testing.assert_close(host(got), ((x * 2).flip(0) + x, (x * 2).flip(0).half(), x))


def test_a_graph_that_begins_on_the_cpu():
    got = torch.compile(lambda c: (c + 1).to("spyre") * 2, fullgraph=True)(torch.ones(3))
    assert got.device.type == "spyre"
    assert got.tolist() == [4, 4, 4]


def test_numbers_of_the_cpu():
    """PyTorch takes 0-dim tensors of the CPU as numbers."""
    x, factor = torch.randn(4, 5), torch.tensor(3.0)
    got = torch.compile(lambda x, factor: x * factor + torch.tensor(2.0), fullgraph=True)(x.to("spyre"), factor)
    torch.testing.assert_close(got.cpu(), x * 3 + 2)


@pytest.mark.parametrize("way", [lambda f: f, lambda f: torch.compile(f)], ids=["eager", "compiled"])
def test_the_wrong_device_is_pytorchs_error(way):
    with pytest.raises(
        RuntimeError, match="[Ee]xpected all tensors to be on the same device|found.* two different devices"
    ):
        way(lambda a, b: a + b)(torch.ones(3).to("spyre"), torch.ones(3))
    with pytest.raises(
        RuntimeError, match="[Ee]xpected all tensors to be on the same device|found.* two different devices"
    ):
        way(lambda a, b: a @ b)(torch.ones(3, 3).to("spyre"), torch.ones(3, 3))


# --- dtypes


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.double() * 2,
        lambda x: x.sum(dtype=torch.float64),
        lambda x: torch.ones(3, dtype=torch.float64, device=x.device) + x,
        lambda x: x.to(torch.complex128) * 2,
        lambda x: torch.complex(x.half(), x.half()),
    ],
)
def test_dtypes_that_the_card_has_not(function):
    with pytest.raises((RuntimeError, TypeError, NotImplementedError), match="(?i)float64|double|complex|ComplexFloat"):
        torch.compile(function)(torch.ones(3).to("spyre"))


def test_float64_of_the_cpu_stays_there():
    got = torch.compile(lambda x: x.cpu().double() / 3, fullgraph=True)(torch.ones(3).to("spyre"))
    torch.testing.assert_close(got, torch.ones(3, dtype=torch.float64) / 3)


# --- random numbers


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x, 0.5) * 2,
        lambda x: torch.rand_like(x) + x,
        lambda x: torch.randn(4, 64, device=x.device) * x,
        lambda x: torch.bernoulli(x.sigmoid()) + 1,
        lambda x: torch.randint(0, 10, (4, 64), device=x.device) + x,
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
    ],
)
def test_random_numbers_are_those_of_eager(function):
    x = torch.randn(4, 64).to("spyre")
    with torch.spyre.fallback("count"):
        torch.manual_seed(5)
        want = function(x)
        torch.manual_seed(5)
        got = torch.compile(function, fullgraph=True)(x)
    torch.testing.assert_close(got.cpu(), want.cpu())


def test_dropout_drops_and_scales():
    with torch.spyre.fallback("count"):
        out = torch.compile(lambda x: F.dropout(x, 0.25))(torch.ones(100, 100).to("spyre")).cpu()
    assert set(out.unique().tolist()) == {0.0, 4 / 3} or torch.allclose(out.unique(), torch.tensor([0, 4 / 3]))
    assert abs(out.mean() - 1) < 0.05


# --- assertions


def test_assertions_hold():
    ones = torch.compile(lambda t: F.one_hot(t, 4))
    assert ones(torch.tensor([1, 2]).to("spyre")).cpu().tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        ones(torch.tensor([1, 7]).to("spyre"))
        torch.spyre.synchronize()


@pytest.mark.parametrize("shape", [(4, 6), (3, 100), (64, 64)])
def test_copies_of_tensors_with_padding(shape):
    x, y = torch.zeros(shape), torch.randn(shape)
    on_card = x.to("spyre")
    torch.compile(lambda x, y: torch._foreach_copy_([x], [y]))(on_card, y.to("spyre"))
    assert torch.equal(on_card.cpu(), y)
    for part in (lambda x: x, lambda x: x[1:, ::2], lambda x: x.t()):
        got, want = (torch.ops.aten.copy(part(at), torch.ones_like(part(at))) for at in (x.to("spyre"), x))
        assert got.stride() == want.stride() and torch.equal(got.cpu(), want)


def test_gradients_through_complex_numbers():
    x = torch.randn(4, 6)

    def gradient(function, x):
        x = x.clone().requires_grad_()
        (function(x) ** 2).sum().backward()
        return x.grad.cpu()

    function = lambda x: torch.fft.rfft(x).abs()  # noqa: E731
    torch.testing.assert_close(gradient(torch.compile(function), x.to("spyre")), gradient(function, x))


def test_loops_in_graphs():
    def function(i, x):
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (i, x))

    for i in (torch.tensor(0), torch.tensor(0).to("spyre")):
        count, doubled = torch.compile(function)(i, torch.ones(3).to("spyre"))
        assert (count.item(), doubled.tolist()) == (3, [8.0] * 3)
