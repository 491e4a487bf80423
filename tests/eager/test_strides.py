"""Results of pointwise ops have the strides that they have on the host."""

import pytest
import torch
import torch.nn.functional as F

aten = torch.ops.aten

VIEWS = {
    "transposed": lambda x: x[0, 0].t(),
    "permuted": lambda x: x.permute(2, 0, 3, 1),
    "expanded": lambda x: x[:1, :, :1].expand(4, 3, 6, 5),
    "sliced": lambda x: x[:, 1:, ::2],
    "channels last": lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "sliced and transposed": lambda x: x[0, :, :, 1:4].transpose(0, 2),
    "of size one": lambda x: x.permute(1, 0, 2, 3)[:, :1],
}
UNARY = [torch.neg, torch.exp, torch.abs, torch.relu, torch.isnan, torch.isinf, torch.logical_not, torch.square]
UNARY += [F.silu, F.gelu, F.hardswish, F.softplus, F.elu, F.leaky_relu, F.hardshrink, torch.nan_to_num]
UNARY += [lambda x: x + 1, lambda x: x**2, lambda x: x.clamp(-1, 1), lambda x: x == 0, lambda x: 2 - x]
UNARY += [lambda x: x.to(torch.float16), lambda x: x.masked_fill(x > 0, 1.0)]
BINARY = [torch.add, torch.mul, torch.maximum, torch.atan2, torch.copysign, torch.floor_divide, torch.logical_and]
BINARY += [torch.eq, torch.pow, torch.logaddexp, lambda x, y: torch.where(x > y, x, y), aten.gelu_backward]
BINARY += [lambda x, y: torch.addcmul(x, x, y, value=0.5), lambda x, y: torch.lerp(x, y, 0.3), aten.silu_backward]
X = torch.linspace(-2, 2, 2 * 3 * 4 * 5).reshape(2, 3, 4, 5)


pytestmark = pytest.mark.usefixtures("no_fallback")


@pytest.mark.parametrize("view", VIEWS)
def test_one_tensor(view):
    x = VIEWS[view](X)
    card = VIEWS[view](X.to("spyre"))
    for op in UNARY:
        want, got = op(x), op(card)
        assert got.stride() == want.stride(), op
        torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("view", VIEWS)
def test_two_tensors(view):
    x, card = VIEWS[view](X), VIEWS[view](X.to("spyre"))
    whole = torch.linspace(0.5, 2, x.numel()).reshape(x.shape)
    for op in BINARY:
        for other in (x, whole) if "backward" in str(op) else (x, whole, whole[..., :1, :]):
            there = card if other is x else other.to("spyre")
            assert op(card, there).stride() == op(x, other).stride(), op
            assert op(there, card).stride() == op(other, x).stride(), op


def test_outputs_that_are_resized():
    x = VIEWS["permuted"](X)
    for op in (torch.exp, torch.abs, torch.logical_not):
        out = torch.empty(0, dtype=op(x).dtype)
        got = op(x.to("spyre"), out=out.to("spyre"))
        assert got.stride() == op(x, out=out).stride()
        torch.testing.assert_close(got.cpu(), out, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([x, x]),
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.adaptive_max_pool2d(x, 2),
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: F.batch_norm(x, torch.zeros(5).to(x.device), torch.ones(5).to(x.device)),
        lambda x: F.pad(x, (1, 1)),
    ],
)
def test_images_with_channels_last(function):
    x = torch.randn(2, 3, 4, 5).permute(0, 3, 1, 2)
    with torch.spyre.fallback("error"):
        got, want = function(x.to("spyre")), function(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("function", [torch.minimum, torch.add, torch.lt, torch.atan2])
def test_operands_are_converted_before_strides_are_chosen(function):
    a, b = torch.ones(1, 1, dtype=torch.bfloat16).expand(2, 3, 2), torch.ones(2, 3, 2).transpose(0, 2)
    got, want = (function(a.to(device).expand(2, 3, 2), b.to(device)) for device in ("spyre", "cpu"))
    assert got.stride() == want.stride() and got.dtype == want.dtype


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resampling_with_channels_last(mode):
    x = torch.randn(2, 3, 4, 5).permute(0, 3, 1, 2)
    with torch.spyre.fallback("error"):
        got = F.interpolate(x.to("spyre"), scale_factor=2, mode=mode)
    torch.testing.assert_close(got.cpu(), F.interpolate(x, scale_factor=2, mode=mode))
