"""torch.autocast on the card."""

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore::torch_spyre.ops.fallbacks.FallbackWarning")


def ones(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(4, 4, dtype=dtype, device="spyre")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "op",
    [
        lambda x: x @ x,
        lambda x: torch.mm(x, x),
        lambda x: torch.addmm(x, x, x),
        lambda x: torch.nn.functional.linear(x, x),
        lambda x: torch.bmm(x[None], x[None]),
        lambda x: torch.nn.functional.conv1d(x[None], x[None]),
        lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    ],
)
def test_matrix_products_run_in_the_lower_precision(op, dtype):
    with torch.autocast("spyre", dtype=dtype):
        assert op(ones()).dtype == dtype
    assert op(ones()).dtype == torch.float32


@pytest.mark.parametrize(
    "op",
    [torch.exp, torch.log, lambda x: x.softmax(0), lambda x: x.sum(), lambda x: torch.nn.functional.mse_loss(x, x)],
)
def test_sensitive_ops_run_in_float32(op):
    with torch.autocast("spyre"):
        assert op(ones(torch.float16)).dtype == torch.float32


def test_mixed_arguments_take_the_widest_type():
    with torch.autocast("spyre"):
        assert torch.cat([ones(), ones(torch.float16)]).dtype == torch.float32
        assert torch.addcmul(ones(), ones(torch.float16), ones(torch.float16)).dtype == torch.float32


def test_other_ops_keep_their_types():
    with torch.autocast("spyre"):
        assert ones(torch.float16).relu().dtype == torch.float16
        assert ones().relu().dtype == torch.float32


def test_default_and_supported_types():
    assert torch.get_autocast_dtype("spyre") in torch.spyre.get_amp_supported_dtype()
    assert torch.spyre.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
    assert torch.amp.is_autocast_available("spyre")
    with pytest.warns(UserWarning, match="not support|is not supported"), torch.autocast("spyre", dtype=torch.float32):
        assert not torch.is_autocast_enabled("spyre")


def test_nesting_and_disabling():
    with torch.autocast("spyre"):
        with torch.autocast("spyre", enabled=False):
            assert (ones() @ ones()).dtype == torch.float32
        assert (ones() @ ones()).dtype == torch.float16


def test_the_hosts_autocast_does_not_reach_the_card():
    with torch.autocast("cpu"):
        assert (ones() @ ones()).dtype == torch.float32


def test_values_and_gradients():
    x = torch.full((4, 4), 0.5, device="spyre", requires_grad=True)
    with torch.autocast("spyre", dtype=torch.float16):
        loss = (x @ x).float().sum()
    loss.backward()
    assert loss.item() == 16 and x.grad.dtype == torch.float32
    assert torch.equal(x.grad.cpu(), torch.full((4, 4), 4.0))


def test_binary_cross_entropy_is_refused():
    with torch.autocast("spyre"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        torch.nn.functional.binary_cross_entropy(ones(), ones())


def test_gradient_scaler():
    """Scaled gradients are unscaled before the step; an overflow skips the step and lowers the scale."""
    with torch.spyre.fallback("error"):
        weight = torch.nn.Parameter(torch.ones(4, device="spyre"))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        scaler = torch.amp.GradScaler("spyre", init_scale=8.0)
        scaler.scale((weight * 2).sum()).backward()
        assert weight.grad.cpu().tolist() == [16.0] * 4
        scaler.step(optimizer)
        scaler.update()
        assert weight.detach().cpu().tolist() == [0.0] * 4
        optimizer.zero_grad()
        scaler.scale((weight * float("inf")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert weight.detach().cpu().tolist() == [0.0] * 4
        assert scaler.get_scale() == 4.0


def test_the_scale_grows_after_enough_steps():
    scale, steps = (torch.full((), n, dtype=d, device="spyre") for n, d in ((4.0, torch.float32), (0, torch.int32)))
    seen = []
    with torch.spyre.fallback("error"):
        for found in (0.0, 0.0, 1.0, 0.0, 0.0, 0.0):
            torch._amp_update_scale_(scale, steps, torch.full((), found, device="spyre"), 2.0, 0.5, 2)
            seen.append((scale.item(), steps.item()))
    assert seen == [(4, 1), (8, 0), (4, 0), (4, 1), (8, 0), (8, 1)]
