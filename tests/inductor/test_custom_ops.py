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


@pytest.mark.parametrize("compiled", [False, True])
def test_constants(compiled):
    def constants(x):
        full = spyre.full([3, 65], 1.5, dtype=torch.float16, device=x.device)
        return full, full + spyre.constant(2, dtype=torch.float16, device=x.device) + x

    full, moved = on_card(constants, rounded(65), compiled=compiled)
    assert torch.equal(full.cpu(), torch.full((3, 65), 1.5, dtype=torch.float16))
    torch.testing.assert_close(moved.cpu().float(), 3.5 + rounded(65).float().expand(3, 65), rtol=2**-9, atol=0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_float8_by_channels(dim, compiled):
    x = rounded(5, 130)
    x[:, 7] = 0

    def there_and_back(x):
        quantized, scale = spyre.qfp8ch(x, dim)
        return quantized, scale, spyre.dequantize_fp8_with_scale(quantized, scale)

    quantized, scale, back = on_card(there_and_back, x, compiled=compiled)
    wanted = there_and_back(x)
    assert quantized.dtype == torch.float8_e4m3fn and quantized.device.type == "spyre"
    assert torch.equal(quantized.cpu().float(), wanted[0].float()) and torch.equal(scale.cpu(), wanted[1])
    torch.testing.assert_close(back.cpu(), wanted[2], rtol=2**-9, atol=0)
    torch.testing.assert_close(back.cpu(), x, rtol=2**-4, atol=2**-8)


def test_float8_saturates():
    x = torch.tensor([1000.0, -1000.0, 3.0])
    quantized = on_card(spyre.quantize_fp8_with_scale, x, torch.tensor(2.0), compiled=False)
    assert quantized.cpu().float().tolist() == [448.0, -448.0, 1.5]


@torch.library.custom_op("torch_spyre_tests::increment", mutates_args=("x",))
def increment(x: torch.Tensor) -> None:
    x.add_(1)


@pytest.mark.parametrize("part", [slice(None), slice(1, None)], ids=["whole", "view"])
def test_custom_ops_may_change_inputs_of_the_graph(part):
    def function(x):
        increment(x[part])
        return x * 2

    x = torch.arange(5.0)
    changed, want = x.to("spyre"), function(x)
    assert torch.equal(torch.compile(function)(changed).cpu(), want)
    assert torch.equal(changed.cpu(), x)
