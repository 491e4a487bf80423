"""torch.ops.spyre, eager and compiled, against the same op on the CPU."""

import pytest
import torch

spyre = torch.ops.spyre


def on_card(op, *args, compiled: bool):
    function = torch.compile(op, fullgraph=True) if compiled else op
    with torch.spyre.fallback("error"):
        return function(*(a.to("spyre") if isinstance(a, torch.Tensor) else a for a in args))


def rounded(*size: int) -> torch.Tensor:
    """fp16 numbers that the card has."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(1)).to(torch.float16).to("spyre").cpu()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "op, args",
    [
        (lambda x: spyre.rms_norm(x, [130]), (rounded(5, 130),)),
        (lambda x, w, b: spyre.layer_norm(x, [130], w, b), (rounded(5, 130), rounded(130), rounded(130))),
        (lambda x: spyre.gelu(x, "tanh"), (rounded(5, 130),)),
        (lambda x: spyre.softplus(x, 2.0), (rounded(5, 130),)),
        (lambda x: spyre.clamp(x, -0.5, 0.5), (rounded(5, 130),)),
        (lambda x: spyre.topkvalue(x, 3), (rounded(5, 130),)),
        (lambda x: spyre.topkindex(x, 3, 0), (rounded(5, 130),)),
        (lambda x, out: spyre.overwrite_f(x, out, [1], [7]), (rounded(5, 130), rounded(5, 140))),
    ],
)
def test_values(op, args, compiled):
    want = op(*(a.float() for a in args))
    # Norms add two roundings of their weight and bias to the one of the result.
    torch.testing.assert_close(on_card(op, *args, compiled=compiled).cpu().to(want.dtype), want, rtol=2**-9, atol=2**-9)


@pytest.mark.parametrize("compiled", [False, True])
def test_restickify_moves_the_sticks_and_keeps_the_values(compiled):
    x = rounded(5, 130)
    y = on_card(lambda x: spyre.restickify(x, 0), x, compiled=compiled)
    assert y.device_tensor_layout().device_size == [1, 130, 64] and y.device_tensor_layout().stride_map[-1] == 130
    assert torch.equal(y.cpu(), x)


@pytest.mark.parametrize("compiled", [False, True])
def test_overwrite_changes_a_part(compiled):
    x, out = rounded(5, 130), rounded(5, 200)
    on = out.to("spyre")

    def put(x, out):
        spyre.overwrite(x, out, [1], [30])
        return out + 0

    result = (torch.compile(put, fullgraph=True) if compiled else put)(x.to("spyre"), on)
    out[:, 30:160] = x
    assert torch.equal(on.cpu(), out) and torch.equal(result.cpu(), out)
