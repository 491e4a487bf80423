"""Ops without a kernel run on the CPU: warned once, counted, or refused."""

import warnings

import pytest
import torch

from torch_spyre.ops.fallbacks import FallbackWarning


@pytest.fixture(autouse=True)
def fresh():
    torch.spyre.reset_fallback_counts()
    with torch.spyre.fallback("warn"):
        yield
    torch.spyre.reset_fallback_counts()


def fallback_warnings(body) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        body()
    return [str(w.message) for w in caught if issubclass(w.category, FallbackWarning)]


X = torch.arange(6.0).reshape(2, 3)


def test_warns_once_per_op():
    x = X.to("spyre")
    assert len(fallback_warnings(lambda: [x.polygamma(1), x.polygamma(1), x.t().polygamma(1)])) == 1
    assert len(fallback_warnings(lambda: [x.polygamma(1), x.igamma(x)])) == 1
    torch.spyre.reset_fallback_counts()
    assert len(fallback_warnings(lambda: x.polygamma(1))) == 1


def test_the_warning_names_the_op_and_the_way_out():
    (text,) = fallback_warnings(lambda: X.to("spyre").polygamma(1))
    assert "polygamma" in text and "runs on the CPU" in text and "torch.spyre.fallback('error')" in text


def test_the_warning_points_at_the_users_line():
    with pytest.warns(FallbackWarning) as caught:
        X.to("spyre").polygamma(1)
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore::torch_spyre.ops.fallbacks.FallbackWarning")
def test_counts():
    x = X.to("spyre")
    for _ in range(3):
        x.polygamma(1)
    x.igamma(x)
    counts = torch.spyre.fallback_counts()
    assert counts == {"aten::polygamma": 3, "aten::igamma": 1}
    torch.spyre.reset_fallback_counts()
    assert torch.spyre.fallback_counts() == {}


@pytest.mark.filterwarnings("ignore::torch_spyre.ops.fallbacks.FallbackWarning")
@pytest.mark.parametrize(
    "op, name",
    [
        (lambda x: x.sort(), "aten::sort.stable"),
        (lambda x: x.polygamma_(1), "aten::polygamma"),
        (lambda x: torch.polygamma(1, x, out=torch.empty(2, 3, device="spyre")), "aten::polygamma"),
        (lambda x: torch.sort(x, out=(torch.empty_like(x), x.long())), "aten::sort.stable"),
        (lambda x: torch.linalg.inv_ex(x[:, :2].contiguous()), "aten::linalg_inv_ex"),
    ],
)
def test_counts_go_by_the_functional_name(op, name):
    op(X.to("spyre"))
    assert torch.spyre.fallback_counts() == {name: 1}


def test_count_mode_is_silent():
    x = X.to("spyre")
    with torch.spyre.fallback("count"):
        assert fallback_warnings(lambda: x.polygamma(1)) == []
    assert len(torch.spyre.fallback_counts()) == 1


def test_error_mode():
    x = X.to("spyre")
    with torch.spyre.fallback("error"):
        with pytest.raises(
            NotImplementedError, match="polygamma.* has no kernel on the card yet, and falling back to the"
        ):
            x.polygamma(1)
        with torch.spyre.fallback("count"):
            x.polygamma(1)
        with pytest.raises(NotImplementedError, match="polygamma"):
            x.polygamma(1)
    assert sum(torch.spyre.fallback_counts().values()) == 1


def test_error_mode_lets_views_copies_and_factories_pass():
    with torch.spyre.fallback("error"):
        x = torch.randn(3, 4, device="spyre")
        x.t()[1:].clone().zero_().cpu()
        torch.arange(3, device="spyre").to(torch.float16)


def test_unknown_modes_are_refused():
    with pytest.raises(ValueError, match="fallback mode 'loud': expected 'warn', 'error' or 'count'"):
        torch.spyre.fallback("loud")


def test_called_plainly_the_mode_stays():
    torch.spyre.fallback("error")
    with pytest.raises(NotImplementedError):
        X.to("spyre").polygamma(1)
    torch.spyre.fallback("warn")
    with pytest.warns(FallbackWarning):
        X.to("spyre").polygamma(1)


def test_warnings_as_errors_stop_the_op_each_time():
    x = torch.ones(3, device="spyre")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for _ in range(2):
            with pytest.raises(FallbackWarning, match="polygamma"):
                x.polygamma_(1)
    assert x.tolist() == [1, 1, 1] and torch.spyre.fallback_counts() == {}
    with pytest.warns(FallbackWarning):
        x.polygamma_(1)
    torch.testing.assert_close(x.cpu(), torch.ones(3).polygamma(1))


def test_warnings_as_errors_on_the_command_line(python):
    done = python(
        """
        import warnings
        from torch_spyre.ops.fallbacks import FallbackWarning
        import torch
        warnings.simplefilter("error", FallbackWarning)
        x = torch.ones(3, requires_grad=True, device="spyre")
        try:
            x.polygamma(1)
        except FallbackWarning as error:
            print("stopped:", error)
        torch.spyre.fallback("count")
        print(x.detach().igamma_(x.detach()).shape)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("stopped: aten::polygamma") and done.stdout.endswith("torch.Size([3])\n")


def test_the_environment_silences_the_warning(python):
    done = python(
        "import torch; torch.ones(2, device='spyre').polygamma(1); print(torch.spyre.fallback_counts())",
        TORCH_SPYRE_FALLBACK_WARN="0",
    )
    assert "polygamma" in done.stdout and "Warning" not in done.stderr


quiet = pytest.mark.filterwarnings("ignore::torch_spyre.ops.fallbacks.FallbackWarning")


@quiet
@pytest.mark.parametrize(
    "op",
    [
        lambda x: x + x,
        lambda x: x + 2,
        lambda x: 2 - x,
        lambda x: x @ x.t(),
        lambda x: x.sum(1),
        lambda x: x.max(),
        lambda x: x.sort(descending=True)[0],
        lambda x: torch.cat([x, x], 1),
        lambda x: torch.stack([x, x]),
        lambda x: x[x > 2],
        lambda x: x[[1, 0]],
        lambda x: x[:, torch.tensor([2, 0])],
        lambda x: x.nonzero(),
        lambda x: x.topk(2)[1],
        lambda x: torch.where(x > 2, x, 0.0),
        lambda x: x.cumsum(0),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: torch.nn.functional.embedding(torch.tensor([1, 0]).to(x.device), x),
        lambda x: x.std(),
        lambda x: torch.nn.functional.pad(x, (1, 2)),
        lambda x: x.repeat(2, 2),
        lambda x: x.flip(0),
        lambda x: x.unique(),
        lambda x: x.polygamma(1),
        lambda x: x == x,
        lambda x: torch.linalg.norm(x),
        lambda x: torch.tril(x),
        lambda x: x.expand(2, 2, 3) * 2,
        lambda x: x.t() * 2,
        lambda x: x[:0].sum(),
    ],
)
def test_results_equal_the_hosts(op):
    result = op(X.to("spyre"))
    assert result.device.type == "spyre"
    torch.testing.assert_close(result.cpu(), op(X), equal_nan=True)


@quiet
def test_ops_that_return_several_things():
    x = X.to("spyre")
    values, indices = x.max(1)
    assert values.device == indices.device == x.device and indices.tolist() == [2, 2]
    q, r = torch.linalg.qr(x)
    torch.testing.assert_close((q @ r).cpu(), X)
    assert [t.device.type for t in torch._foreach_mul([x, x], 2)] == ["spyre", "spyre"]


@quiet
def test_in_place():
    x = X.to("spyre")
    y = x.add_(1)
    assert y is x and torch.equal(x.cpu(), X + 1)
    x.t()[1:].mul_(10)
    assert torch.equal(x.cpu(), torch.tensor([[1.0, 20, 30], [4, 50, 60]]))
    x[:, ::2].sub_(x[:, ::2])
    assert x[:, ::2].tolist() == [[0, 0], [0, 0]] and x[:, 1].tolist() == [20, 50]
    x[x > 30] = -1
    x.masked_fill_(x == 20, 5)
    assert x.tolist() == [[0, 5, 0], [0, -1, 0]]


@quiet
def test_in_place_on_lists():
    a, b = X.to("spyre"), X.to("spyre").t()
    torch._foreach_add_([a, b], 1)
    assert torch.equal(a.cpu(), X + 1) and torch.equal(b.cpu(), X.t() + 1) and b.stride() == (1, 3)


@quiet
def test_out():
    x = X.to("spyre")
    out = torch.empty(0, device="spyre")
    assert torch.add(x, x, out=out) is out
    assert torch.equal(out.cpu(), X * 2)
    assert out.device_tensor_layout() == torch.spyre.SpyreTensorLayout([2, 3], torch.float32)
    large = torch.full((4, 3), -1.0, device="spyre")
    torch.mul(x, 3, out=large[1:3])
    assert torch.equal(large[1:3].cpu(), X * 3) and large[0].tolist() == large[3].tolist() == [-1] * 3
    transposed = torch.empty(3, 2, device="spyre").t()
    torch.polygamma(1, x / 10, out=transposed)
    assert transposed.stride() == (1, 2)
    torch.testing.assert_close(transposed.cpu(), torch.polygamma(1, X / 10))
    torch.add(x, 1, out=x)
    assert torch.equal(x.cpu(), X + 1)


@quiet
def test_out_of_the_wrong_size_warns_as_on_the_host():
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        out = torch.polygamma(1, X.to("spyre"), out=torch.empty(4, device="spyre"))
    assert out.shape == (2, 3)
    values, indices = torch.empty(0, device="spyre"), torch.empty(0, dtype=torch.int64, device="spyre")
    torch.max(X.to("spyre"), 1, out=(values, indices))
    assert values.tolist() == [2, 5] and indices.tolist() == [2, 2]


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x + torch.ones(2, 3),
        lambda x: torch.ones(2, 3) + x,
        lambda x: torch.ones(2, 3).add_(x),
        lambda x: x.add_(torch.ones(2, 3)),
        lambda x: x @ torch.ones(3, 2),
        lambda x: torch.cat([x, torch.ones(2, 3)]),
        lambda x: torch.nn.functional.linear(x, torch.ones(4, 3)),
        lambda x: torch.where(x > 1, x, torch.ones(2, 3)),
        lambda x: torch.polygamma(1, x, out=torch.empty(2, 3)),
        lambda x: torch.tensor(1.0).add_(x[0, 0]),
        lambda x: torch.nn.functional.embedding(torch.tensor([1]), x),
        lambda x: torch.ones(4)[torch.tensor([1]).to("spyre")],
    ],
)
@quiet
def test_mixed_devices_are_refused(op):
    with pytest.raises(RuntimeError, match="two devices|same device"):
        op(X.to("spyre"))


@quiet
def test_numbers_and_indices_may_stay_on_the_host():
    x = X.to("spyre")
    assert torch.equal((x * torch.tensor(2.0)).cpu(), X * 2)
    assert torch.equal(x[torch.tensor([1])].cpu(), X[[1]])
    x[torch.tensor([0])] = 7.0
    assert x[0].tolist() == [7, 7, 7]


@quiet
def test_an_error_of_the_op_is_the_hosts():
    x = X.to("spyre")
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        x @ x
    with pytest.raises(IndexError, match="index 5 is out of bounds for a dimension of 2"):
        x[[5]].cpu()  # what depends on values is found on the card, and told by the next call that waits
    assert torch.equal(x.cpu(), X)


@quiet
def test_results_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match="a result of add does not fit the 32 bits"):
        torch.full((2,), 2_000_000_000, device="spyre").sum().cpu()
    with pytest.raises(TypeError, match="does not support dtype torch.float64"):
        X.to("spyre").double()


@quiet
def test_numbers_in_float64_stay_on_the_host():
    """PyTorch makes tolerances into float64 tensors, which the card has not."""
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    y = x.to("spyre").requires_grad_()
    torch.testing.assert_close(torch.linalg.pinv(y).cpu(), torch.linalg.pinv(x))
    torch.testing.assert_close(torch.linalg.pinv(y, atol=0.1, rtol=0.2).cpu(), torch.linalg.pinv(x, atol=0.1, rtol=0.2))
    assert torch.linalg.matrix_rank(y).item() == torch.linalg.matrix_rank(y, tol=0.1).item() == 3
    out = torch.empty(0, device="spyre")
    assert torch.equal(torch.linalg.pinv(y.detach(), out=out).cpu(), torch.linalg.pinv(x))
    torch.linalg.pinv(y).sum().backward()
    x.requires_grad_()
    torch.linalg.pinv(x).sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)


@quiet
def test_nested_fallbacks_inside_backward():
    x = X.to("spyre").requires_grad_()
    torch.polygamma(1, x @ x.t()).sum().backward()
    assert x.grad.shape == (2, 3) and sum(torch.spyre.fallback_counts().values()) >= 2


@quiet
def test_random_ops_follow_the_device_seed():
    torch.spyre.manual_seed(3)
    first = torch.nn.functional.dropout(torch.ones(100, device="spyre"))
    torch.spyre.manual_seed(3)
    assert torch.equal(torch.nn.functional.dropout(torch.ones(100, device="spyre")).cpu(), first.cpu())


@quiet
def test_random_ops_leave_the_hosts_generator_alone():
    before = torch.get_rng_state()
    torch.multinomial(torch.ones(5, device="spyre"), 2)
    torch.nn.functional.dropout(torch.ones(100, device="spyre"))
    torch.rand(3, device="spyre").bernoulli_()
    assert torch.equal(torch.get_rng_state(), before)


@quiet
@pytest.mark.parametrize("conv", [torch.nn.Conv1d, torch.nn.ConvTranspose1d])
def test_convolutions(conv):
    layer, x = conv(3, 4, 2), torch.randn(2, 3, 9)
    expected = layer(x)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    result = layer.to("spyre")(x.to("spyre"))
    result.sum().backward()
    torch.testing.assert_close(result.cpu(), expected)
    for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient)


@quiet
@pytest.mark.parametrize("network", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_networks(network):
    model, x = network(4, 5), torch.randn(3, 2, 4)
    expected = model(x)[0]
    expected.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    result = model.to("spyre")(x.to("spyre"))[0]
    result.sum().backward()
    torch.testing.assert_close(result.cpu(), expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient)


@quiet
def test_losses_do_not_warn_about_outputs():
    x = X.to("spyre")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", FallbackWarning)
        assert torch.nn.functional.mse_loss(x, x).shape == ()


def test_uninitialised_outputs_are_not_read(python):
    """In strict mode reading memory that was never written is an error: out= and random fills only write it."""
    done = python(
        """
        import torch
        torch.spyre.fallback("count")
        x = torch.rand(4, 5, device="spyre")
        torch.polygamma(1, x, out=torch.empty(4, 5, device="spyre"))
        (x + x).normal_()
        torch.empty(3, device="spyre").uniform_()
        torch.empty(3, device="spyre").bernoulli_(0.5)
        """,
        SPYRE_CARD="strict",
    )
    assert done.returncode == 0, done.stderr


def test_two_cards(python):
    done = python(
        """
        import torch
        torch.spyre.fallback("count")
        here, there = torch.arange(3.0).to("spyre:0"), torch.arange(3.0).to("spyre:1")
        assert (there + 1).device == torch.device("spyre:1")
        assert there.to("spyre:0", torch.float16).tolist() == [0, 1, 2]
        assert torch.rand(3, device="spyre:1").device == torch.device("spyre:1")
        for mix in (lambda: here + there, lambda: torch.cat([here, there])):
            try:
                mix()
            except RuntimeError as error:
                print(error)
        """,
        AIU_WORLD_SIZE="2",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("found at least two devices, spyre:") == 2


WRONG = {
    "sizes": lambda x: x + x.t(),
    "cat": lambda x: torch.cat([x, x.t()]),
    "indices": lambda x: x.index_select(0, torch.zeros(2, 2, dtype=torch.int32, device="spyre")),
    "dtype": lambda x: x & x,
    "number": lambda x: x.half().masked_fill(x > 0, -1e9),
    "norm": lambda x: torch.nn.functional.layer_norm(x, (5,)),
    "dimension": lambda x: torch.unique_consecutive(x, dim=3),
    "kth": lambda x: x.kthvalue(9),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_an_error_anywhere_is_an_error_and_no_fallback(wrong):
    def body():
        with pytest.raises((RuntimeError, IndexError)):
            WRONG[wrong](X.to("spyre"))

    assert fallback_warnings(body) == [] and torch.spyre.fallback_counts() == {}


def test_a_warning_that_is_an_error_leaves_tensors_as_they_were():
    x = X.to("spyre")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for _ in range(2):
            with pytest.raises(FallbackWarning):
                x.polygamma_(1)
    assert torch.equal(x.cpu(), X)


def test_halves_that_the_host_has_not_are_computed_in_fp32():
    x = torch.randn(1, 2, 16, 16, generator=torch.Generator().manual_seed(0)).half()
    options = {"size": (7, 7), "mode": "bilinear", "antialias": True}
    with torch.spyre.fallback("count"):
        found = torch.nn.functional.interpolate(x.to("spyre"), **options)
    assert found.dtype == torch.float16
    expected = torch.nn.functional.interpolate(x.float(), **options)
    torch.testing.assert_close(found.cpu().float(), expected, rtol=2**-8, atol=2**-8)


# The host refuses halves, and computes one result in the input's dtype and one in float32.
STATISTICS = """
#include <ATen/core/Tensor.h>
#include <torch/library.h>

using Results = std::tuple<at::Tensor, at::Tensor>;

Results compute(const at::Tensor& x) {
  TORCH_CHECK_NOT_IMPLEMENTED(x.scalar_type() == at::kFloat, "not implemented for '", x.scalar_type(), "'");
  return {x.div(3), x.div(3)};
}

Results shapes(const at::Tensor& x) {
  return {x.new_empty(x.sizes()), x.new_empty(x.sizes(), x.options().dtype(at::kFloat))};
}

TORCH_LIBRARY(spyre_test, m) { m.def("statistics(Tensor x) -> (Tensor, Tensor)"); }
TORCH_LIBRARY_IMPL(spyre_test, CPU, m) { m.impl("statistics", compute); }
TORCH_LIBRARY_IMPL(spyre_test, Meta, m) { m.impl("statistics", shapes); }
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch_spyre.ops.fallbacks.FallbackWarning")
def test_a_float32_result_of_halves_is_not_rounded(tmp_path):
    from torch.utils.cpp_extension import load

    source = tmp_path / "statistics.cpp"
    source.write_text(STATISTICS)
    load("spyre_test_statistics", [str(source)], build_directory=str(tmp_path), is_python_module=False)
    for dtype in (torch.float16, torch.bfloat16):
        x = X.to(dtype)
        narrow, wide = torch.ops.spyre_test.statistics(x.to("spyre"))
        assert narrow.dtype == dtype and wide.dtype == torch.float32
        assert torch.equal(wide.cpu(), X / 3)
