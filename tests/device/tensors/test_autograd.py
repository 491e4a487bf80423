"""Gradients on the card, and across devices."""

import copy

import pytest
import torch
from torch.spyre import SpyreTensorLayout

from torch_spyre.compare.error_bounds import difference, inside, rounding

pytestmark = pytest.mark.filterwarnings("ignore::torch_spyre.ops.fallbacks.FallbackWarning")


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.to("spyre"),
        lambda x: x.spyre(),
        lambda x: x.to("spyre", torch.float16),
        lambda x: x.to("spyre", device_layout=SpyreTensorLayout([3, 4], [4, 1], torch.float32, [1, 0])),
        lambda x: torch.empty(3, 4, device="spyre").copy_(x),
        lambda x: x.to("spyre", copy=True).cpu().to("spyre"),
    ],
    ids=["to", "spyre", "to dtype", "to layout", "copy_", "there and back"],
)
def test_gradients_flow_through_moves(move):
    x = torch.ones(3, 4, requires_grad=True)
    y = move(x)
    assert y.requires_grad and not y.is_leaf and y.device.type == "spyre"
    (y * 2).sum().backward()
    assert x.grad.device.type == "cpu" and x.grad.tolist() == [[2.0] * 4] * 3


def test_gradients_flow_from_the_card():
    x = torch.ones(3, device="spyre", requires_grad=True)
    (x.cpu() * torch.arange(3.0)).sum().backward()
    assert x.grad.device == x.device and x.grad.tolist() == [0, 1, 2]


def test_gradients_flow_between_layouts_on_the_card():
    x = torch.ones(3, 4, device="spyre", requires_grad=True)
    y = x.to(device_layout=SpyreTensorLayout([3, 4], [4, 1], torch.float32, [1, 0]))
    y.backward(torch.full((3, 4), 3.0, device="spyre"))
    assert x.grad.tolist() == [[3.0] * 4] * 3
    assert not x.detach().to(device_layout=y.device_tensor_layout()).requires_grad


FUNCTIONS = {
    "arithmetic": lambda x, w: ((x * w + x) / (w + 3)).sum(),
    "matmul": lambda x, w: (x @ w.t()).tanh().sum(),
    "softmax": lambda x, w: (x.softmax(-1) * w).sum(),
    "views": lambda x, w: (x.t()[1:].reshape(-1)[::2] * 3).sum() + w[0].unsqueeze(0).expand(5, 4).sum(),
    "index": lambda x, w: x[[0, 2, 0]].sum() + w[:, torch.tensor([1, 1])].sum(),
    "cat and split": lambda x, w: torch.cat([x, w]).split(2)[1].pow(2).sum(),
    "where": lambda x, w: torch.where(x > w, x, w * 2).sum(),
    "norm": lambda x, w: torch.nn.functional.layer_norm(x, (4,), w[0], w[1]).pow(2).sum(),
    "in place": lambda x, w: (x * 1).mul_(w).add_(x).sum(),
    "write through a view": lambda x, w: written(x * 1, w).sum(),
    "broadcast": lambda x, w: (x[:, None] - w[None]).abs().sum(),
    "clone": lambda x, w: (x.clone() * w.contiguous()).sum(),
}


def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x[1:, ::2] = w[:2, ::2] * 5
    return x


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_gradients_equal_the_hosts(function):
    torch.manual_seed(0)
    host = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    card = [t.detach().to("spyre").requires_grad_() for t in host]
    expected, value = function(*host), function(*card)
    expected.backward()
    value.backward()
    torch.testing.assert_close(value.cpu(), expected)
    for ours, theirs in zip(card, host, strict=True):
        assert ours.grad.device.type == "spyre"
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "norm",
    [torch.nn.LayerNorm(64), torch.nn.BatchNorm1d(64), torch.nn.GroupNorm(4, 64), torch.nn.RMSNorm(64)],
    ids=lambda norm: type(norm).__name__,
)
def test_norms_of_halves_have_gradients_on_the_card(norm, dtype, no_fallback):
    torch.manual_seed(0)
    x, gradient = (torch.randn(6, 64).to(dtype) for _ in range(2))

    def gradients(device, dtype):
        own = copy.deepcopy(norm).to(device, dtype)
        given = x.to(device, dtype).requires_grad_()
        own(given).backward(gradient.to(device, dtype))
        return [given.grad, *(parameter.grad for parameter in own.parameters())]

    for ours, exact in zip(gradients("spyre", dtype), gradients("cpu", torch.float32), strict=True):
        assert ours.dtype == dtype
        # Sums of terms that cancel: each is rounded where it enters, and the sum where it leaves.
        bound = rounding(exact.abs().max().expand(exact.shape), dtype, roundings=4)
        assert inside(ours.cpu(), exact, bound).all(), difference(ours.cpu(), exact, bound)


def test_a_program_may_end_with_a_backward_pass(python):
    done = python("""
        import torch
        x = torch.ones(4, 64, device="spyre", requires_grad=True)
        (x * x).sum().backward()
    """)
    assert done.returncode == 0, done.stderr


def test_gradients_accumulate_and_are_cleared():
    x = torch.ones(2, device="spyre", requires_grad=True)
    x.sum().backward()
    x.sum().backward()
    assert x.grad.tolist() == [2, 2]
    x.grad.zero_()
    assert x.grad.tolist() == [0, 0]


def test_no_grad_and_inference_mode():
    x = torch.ones(2, device="spyre", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
    assert y.is_inference() and y.tolist() == [2, 2]


def test_hooks_and_grad_of_intermediates():
    seen = []
    x = torch.ones(2, device="spyre", requires_grad=True)
    y = x * 3
    y.register_hook(lambda grad: seen.append(grad.tolist()))
    y.retain_grad()
    y.sum().backward()
    assert seen == [[1, 1]] and y.grad.tolist() == [1, 1]


def test_second_derivatives():
    x = torch.tensor([2.0], device="spyre", requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert (first.item(), second.item()) == (12, 12)


def test_custom_functions_and_checkpoints():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            assert ctx.saved_tensors[0].device.type == "spyre"
            return grad * 2

    x = torch.ones(2, device="spyre", requires_grad=True)
    torch.utils.checkpoint.checkpoint(Double.apply, x, use_reentrant=False).sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_saved_tensors_may_wait_on_the_host():
    x = torch.ones(3, device="spyre", requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).sum()
    y.backward()
    assert x.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("foreach", [False, True])
def test_training_equals_the_hosts(optimizer, foreach):
    def train(device: str) -> torch.Tensor:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
        x, y = torch.randn(16, 4), torch.randn(16, 1)
        model.to(device)
        optim = optimizer(model.parameters(), lr=0.05, foreach=foreach)
        for _ in range(3):
            optim.zero_grad()
            torch.nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
            optim.step()
        return model[0].weight.detach().cpu()

    torch.testing.assert_close(train("spyre"), train("cpu"))


def test_in_place_on_a_leaf_is_refused():
    x = torch.ones(2, device="spyre", requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        x.zero_()
    with pytest.raises(RuntimeError, match="only Tensors of floating point"):
        torch.ones(2, dtype=torch.int32, device="spyre").requires_grad_()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_replay_random_ops(reentrant):
    x = torch.ones(30, device="spyre", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(lambda x: torch.nn.functional.dropout(x * 2), x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
