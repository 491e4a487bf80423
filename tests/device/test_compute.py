"""Compute steps of card programs: elementwise, reduce and matmul, against PyTorch on the values the card holds."""

import itertools

import pytest
import torch

from torch_spyre import _C

FORMATS = {
    torch.float16: _C.DataFormats.SEN169_FP16,
    torch.float32: _C.DataFormats.IEEE_FP32,
    torch.int32: _C.DataFormats.IEEE_INT32,
}
ULP = 2**-9  # one unit in the last place of SEN169


def device_strides(tensor: torch.Tensor, dims: str) -> list[int]:
    """Byte strides of a 2-D tensor in its default layout along r (row), t (tile) and l (lane); 0 along others."""
    layout = tensor.device_tensor_layout()
    element = 128 // layout.elems_per_stick()
    along = {"t": tensor.shape[0] * 128, "r": 128, "l": element}
    return [along.get(dim, 0) for dim in dims]


def run(step: dict, *tensors: torch.Tensor) -> None:
    sizes = [t.device_tensor_layout().device_bytes() for t in tensors]
    compute = {"type": "Compute", "program": {"steps": [step]}}
    plan = _C.prepare_kernel({"name": step.get("function", step["op"]), "arguments": sizes, "steps": [compute]})
    _C.launch_jobplan(plan, list(tensors))
    torch.spyre.synchronize()


def operand(argument: int, tensor: torch.Tensor, strides: list[int], dtype: torch.dtype | None = None) -> dict:
    return {"argument": argument, "strides": strides, "format": FORMATS[dtype or tensor.dtype]}


def elementwise(function: str, out: torch.Tensor, *inputs: torch.Tensor, slices=(1, 1, 1), **more) -> torch.Tensor:
    """Over whole sticks [tile, row, lane]; all tensors have the same number of elements per stick."""
    stick = out.device_tensor_layout().elems_per_stick()
    extents = [out.shape[1] // stick, out.shape[0], stick]
    operands = [operand(i, t, device_strides(t, "trl")) for i, t in enumerate((out, *inputs))]
    run(
        {"op": "elementwise", "function": function, "extents": extents, "slices": list(slices), "operands": operands}
        | more,
        out,
        *inputs,
    )
    return out.cpu()


def random(*shape: int, dtype=torch.float16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to("spyre")


UNARY = ["exp", "tanh", "sigmoid", "silu", "gelu_tanh", "sqrt", "neg", "abs", "erf", "sin", "cos", "relu", "floor"]
REFERENCE = {
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "relu": torch.relu,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("function", UNARY)
def test_unary(function, dtype):
    x = random(7, 128, dtype=dtype)
    got = elementwise(function, torch.empty(7, 128, dtype=dtype, device="spyre"), x)
    want = REFERENCE.get(function, getattr(torch, function, None))(x.cpu().float())
    torch.testing.assert_close(
        got.float(), want, rtol=ULP if dtype == torch.float16 else 1e-6, atol=1e-7, equal_nan=True
    )


@pytest.mark.parametrize("slices", [(1, 1, 1), (2, 1, 1), (2, 16, 1), (1, 5, 1)])
def test_binary_on_several_cores(slices):
    x, y = random(33, 128, seed=1), random(33, 128, seed=2)
    got = elementwise("add", torch.empty(33, 128, dtype=torch.float16, device="spyre"), x, y, slices=slices)
    torch.testing.assert_close(got.float(), x.cpu().float() + y.cpu().float(), rtol=ULP, atol=0)


def test_results_round_once_to_the_card_format():
    """1/3 of the card is the nearest 9-bit fraction, ties away from zero."""
    x = torch.full((1, 64), 3.0, dtype=torch.float16, device="spyre")
    got = elementwise("reciprocal", torch.empty(1, 64, dtype=torch.float16, device="spyre"), x)
    assert got[0, 0].item() == round(2**11 / 3) / 2**11


def test_a_cast_is_a_copy_between_formats():
    x = random(4, 64)
    out = torch.empty(4, 64, dtype=torch.float32, device="spyre")
    extents = [4, 2, 32]  # fp32 sticks hold half as many elements: tile t of 32 lies in half a stick of fp16
    step = {
        "op": "elementwise",
        "function": "copy",
        "extents": extents,
        "operands": [operand(0, out, [128, 4 * 128, 4]), operand(1, x, [128, 64, 2])],
    }
    run(step, out, x)
    assert torch.equal(out.cpu(), x.cpu().float())


def test_broadcast_along_rows_and_lanes():
    x, row = random(5, 64, seed=3), random(1, 64, seed=4)
    scalar = random(1, 1, seed=5)
    out = torch.empty(5, 64, dtype=torch.float16, device="spyre")
    step = {
        "op": "elementwise",
        "function": "lerp",
        "extents": [5, 64],
        "operands": [
            operand(0, out, [128, 2]),
            operand(1, x, [128, 2]),
            operand(2, row, [0, 2]),
            operand(3, scalar, [0, 0]),
        ],
    }
    run(step, out, x, row, scalar)
    want = torch.lerp(x.cpu().float(), row.cpu().float(), scalar.cpu().float().item())
    torch.testing.assert_close(out.cpu().float(), want, rtol=ULP, atol=1e-6)


def test_comparison_of_integers_gives_a_bool():
    x = torch.arange(-16, 16, dtype=torch.int32).reshape(1, 32).to("spyre")
    out = torch.empty(1, 32, dtype=torch.float32, device="spyre")
    got = elementwise("gt", out, x, torch.zeros(1, 32, dtype=torch.int32, device="spyre"))
    assert torch.equal(got, (x.cpu() > 0).float())


def test_an_integer_that_does_not_fit_is_an_error_when_checked():
    x = torch.full((1, 32), 2**31 - 1, dtype=torch.int32, device="spyre")
    out = torch.empty_like(x)
    assert elementwise("add", out, x, x)[0, 0] == -2
    with pytest.raises(ValueError, match="a result of add does not fit the 32 bits"):
        elementwise("add", out, x, x, checked=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("function", "start", "reference"),
    [
        ("add", 0.0, lambda x: x.sum(1)),
        ("maximum", float("-inf"), lambda x: x.amax(1)),
        ("minimum", float("inf"), lambda x: x.amin(1)),
    ],
)
def test_reduction_along_the_stick(function, start, reference, dtype):
    """100 columns: the last stick is partly padding, which must not take part. The result is sparse."""
    x = random(6, 100, dtype=dtype)
    x_layout = x.device_tensor_layout()
    stick = x_layout.elems_per_stick()
    out = torch.full((6, 1), 7.0, dtype=dtype, device="spyre")  # one element per stick
    whole, rest = divmod(100, stick)
    partial = torch.empty(6, 1, dtype=torch.float32, device="spyre")
    element = 128 // stick
    base = {"op": "reduce", "function": function, "constants": [start], "reduced": 2}
    run(
        base
        | {
            "extents": [6, whole, stick],
            "slices": [3, 1, 1],
            "operands": [operand(0, partial, [128, 0, 0]), operand(1, x, [128, 6 * 128, element])],
        },
        partial,
        x,
    )
    tail = torch.empty(6, 1, dtype=torch.float32, device="spyre")
    run(
        base
        | {
            "extents": [6, 1, rest],
            "operands": [operand(0, tail, [128, 0, 0]), operand(1, x, [128, 0, element]) | {"offset": whole * 6 * 128}],
        },
        tail,
        x,
    )
    run(
        {
            "op": "elementwise",
            "function": function,
            "extents": [6],
            "operands": [operand(0, out, [128]), operand(1, partial, [128]), operand(2, tail, [128])],
        },
        out,
        partial,
        tail,
    )
    torch.testing.assert_close(
        out.cpu().float().flatten(), reference(x.cpu().float()), rtol=ULP if dtype == torch.float16 else 1e-5, atol=1e-5
    )


def test_reduction_along_another_dimension():
    x = random(9, 64)
    out = torch.empty(1, 64, dtype=torch.float16, device="spyre")
    run(
        {
            "op": "reduce",
            "function": "add",
            "constants": [0],
            "reduced": 1,
            "extents": [64, 9],
            "operands": [operand(0, out, [2, 0]), operand(1, x, [2, 128])],
        },
        out,
        x,
    )
    want = x.cpu().float().sum(0)
    torch.testing.assert_close(
        out.cpu().float()[0], want, rtol=ULP, atol=9 * 2**-24 * float(x.cpu().float().abs().sum())
    )


def matmul(a: torch.Tensor, b: torch.Tensor, dtype, slices=(1, 1, 1), transposed: bool = False) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[0] if transposed else b.shape[1]
    c = torch.zeros(m, n, dtype=dtype, device="spyre")
    sticks = b.shape[0] * 128
    b_strides = [0, 128, sticks] if transposed else [0, sticks, 128]
    step = {
        "op": "matmul",
        "extents": [m, n, k],
        "slices": list(slices),
        "transposed": transposed,
        "operands": [operand(0, c, [128, m * 128, 0]), operand(1, a, [128, 0, m * 128]), operand(2, b, b_strides)],
    }
    run(step, c, a, b)
    return c.cpu()


def check_product(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Within the tolerance that the card's formats imply: one rounding, and fp32 accumulation."""
    a, b = a.cpu().double(), b.cpu().double()
    want, magnitude = a @ b, a.abs() @ b.abs()
    rounding = ULP if got.dtype == torch.float16 else 2**-24
    assert ((got.double() - want).abs() <= rounding * want.abs() + a.shape[1] * 2**-24 * magnitude).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("m", "k", "n"), list(itertools.product([1, 3, 65], [1, 64, 129], [1, 63, 130])))
def test_matmul_of_odd_shapes(m, k, n, transposed):
    a, b = random(m, k, seed=m), random(k, n, seed=n)
    given = b.cpu().t().contiguous().to("spyre") if transposed else b
    check_product(matmul(a, given, torch.float16, transposed=transposed), a, b)


@pytest.mark.parametrize("dtypes", list(itertools.product([torch.float16, torch.float32], repeat=3)))
def test_matmul_of_mixed_formats(dtypes):
    a, b = random(5, 70, dtype=dtypes[0], seed=1), random(70, 66, dtype=dtypes[1], seed=2)
    check_product(matmul(a, b, dtypes[2]), a, b)


def test_matmul_gives_the_same_bits_on_any_number_of_cores():
    a, b = random(64, 200, seed=1), random(200, 256, seed=2)
    one = matmul(a, b, torch.float16)
    assert torch.equal(one, matmul(a, b, torch.float16, slices=(8, 4, 1)))
    assert torch.equal(one, matmul(a, b, torch.float16, slices=(32, 1, 1)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"function": "frobnicate"}, "function: the card has no tile operation 'frobnicate' on SEN169_FP16"),
        ({"function": "bitwise_and"}, "no tile operation 'bitwise_and'"),
        ({"function": "exp"}, "operands: elementwise takes 2, has 3"),
        ({"constants": [1.0]}, "constants: add takes 0, has 1"),
        ({"op": "reduce", "reduced": 1}, "operands: reduce takes 2, has 3"),
        ({"op": "matmul"}, "extents: needs m, n and k"),
    ],
)
def test_wrong_compute_steps_are_refused(change, message):
    x = random(4, 64)
    step = {"op": "elementwise", "function": "add", "extents": [4, 64], "operands": [operand(0, x, [128, 2])] * 3}
    with pytest.raises(ValueError, match=message):
        run(step | change, x)


def test_strict_mode_watches_compute_steps(python):
    done = python(
        """
        import torch
        from torch_spyre import _C
        x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
        out, never = torch.empty_like(x), torch.empty_like(x)
        operands = [dict(argument=i, strides=[128, 2]) for i in range(3)]
        step = dict(op="elementwise", function="add", extents=[4, 64], slices=[4, 1], operands=operands)
        compute = dict(type="Compute", program=dict(steps=[step]))
        plan = _C.prepare_kernel(dict(name="sum", arguments=[512] * 3, steps=[compute]))
        _C.launch_jobplan(plan, [out, x, x])
        print(out.cpu().sum().item())
        _C.launch_jobplan(plan, [out, x, never])
        torch.spyre.synchronize()
        """,
        SPYRE_CARD="strict",
    )
    assert done.stdout.strip() == "512.0"
    assert (
        "program 'sum', step 0 (elementwise): core 0 reads memory of argument 2 that was never written" in done.stderr
    )
