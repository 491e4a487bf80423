"""Compute steps of card programs: elementwise, reduce and matmul, against PyTorch on the values the card holds."""

import itertools

import pytest
import torch

from torch_spyre import _C

FORMATS = {
    torch.float16: _C.DataFormats.SEN169_FP16,
    torch.float32: _C.DataFormats.IEEE_FP32,
    torch.int32: _C.DataFormats.IEEE_INT32,
    torch.int8: _C.DataFormats.SENINT8,
    torch.float8_e4m3fn: _C.DataFormats.SEN143_FP8,
    torch.float8_e5m2: _C.DataFormats.SEN152_FP8,
}
ULP = 2**-9  # one unit in the last place of SEN169


SIZES = [1, 3, 63, 64, 65, 127, 129, 1000]


def strides(tensor: torch.Tensor) -> list[int]:
    """Byte strides of a 2-D tensor in its default layout, [tiles, rows, stick]: of a row, and of a stick."""
    return [128, tensor.shape[0] * 128]


def run(step: dict, *tensors: torch.Tensor) -> None:
    sizes = [t.device_tensor_layout().device_bytes() for t in tensors]
    compute = {"type": "Compute", "program": {"steps": [step]}}
    plan = _C.prepare_kernel({"name": step.get("function", step["op"]), "arguments": sizes, "steps": [compute]})
    _C.launch_jobplan(plan, list(tensors))
    torch.spyre.synchronize()


def operand(argument: int, tensor: torch.Tensor, strides: list[int], stick: int = -1) -> dict:
    return {"argument": argument, "strides": strides, "stick": stick, "format": FORMATS[tensor.dtype]}


def elementwise(function: str, out: torch.Tensor, *inputs, slices=(1, 1), **more) -> torch.Tensor:
    """Over rows and columns; an input is a tensor of out's shape or [rows, 1], or a constant."""
    tensors = [out]
    operands = [operand(0, out, strides(out), 1)]
    for given in inputs:
        if not isinstance(given, torch.Tensor):
            operands.append(given)
            continue
        wide = given.shape[1] == out.shape[1]
        operands.append(operand(len(tensors), given, strides(given) if wide else [128, 0], 1 if wide else -1))
        tensors.append(given)
    step = {
        "op": "elementwise",
        "function": function,
        "extents": list(out.shape),
        "slices": list(slices),
        "operands": operands,
    }
    run(step | more, *tensors)
    return out.cpu()


def empty(*shape: int, dtype=torch.float16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="spyre")


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
    got = elementwise(function, empty(7, 128, dtype=dtype), x)
    want = REFERENCE.get(function, getattr(torch, function, None))(x.cpu().float())
    torch.testing.assert_close(
        got.float(), want, rtol=ULP if dtype == torch.float16 else 1e-6, atol=1e-7, equal_nan=True
    )


@pytest.mark.parametrize("slices", [(1, 1), (1, 2), (16, 2), (5, 3), (32, 1)])
def test_binary_on_several_cores(slices):
    x, y = random(33, 150, seed=1), random(33, 150, seed=2)
    got = elementwise("add", empty(33, 150), x, y, slices=slices)
    torch.testing.assert_close(got.float(), x.cpu().float() + y.cpu().float(), rtol=ULP, atol=0)


@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize(
    ("to", "by"), [(torch.float16, torch.float32), (torch.float32, torch.float16), (torch.float16, torch.float16)]
)
def test_formats_of_different_sticks_meet(columns, to, by):
    """64 elements of one and 32 of the other in a stick."""
    x, y = random(3, columns, dtype=by, seed=1), random(3, columns, dtype=to, seed=2)
    got = elementwise("mul", empty(3, columns, dtype=to), x, y)
    want = x.cpu().float() * y.cpu().float()
    rtol, atol = (ULP, 2**-25) if to == torch.float16 else (0, 0)  # fp16 on the host has subnormals
    torch.testing.assert_close(got.float(), want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("columns", SIZES)
def test_a_cast_is_a_copy_between_formats(columns):
    x = torch.arange(2 * columns, dtype=torch.int32).reshape(2, columns) % 500
    reals = elementwise("to_real", empty(2, columns), x.to("spyre")).to("spyre")
    assert torch.equal(reals.cpu(), x.half())
    assert torch.equal(elementwise("copy", empty(2, columns, dtype=torch.float32), reals), x.float())


@pytest.mark.parametrize("columns", [3, 65, 129])
def test_nothing_is_written_behind_the_last_element(columns):
    """The padding of a stick keeps what it held."""
    tile = -(-columns // 64)
    everything = torch.full((tile * 64,), 7.0, dtype=torch.float16, device="spyre")
    step = {"op": "elementwise", "function": "copy", "extents": [1, columns]}
    run(step | {"operands": [operand(0, everything, [0, 128], 1), {"value": 1.0}]}, everything)
    assert everything.cpu().tolist() == [1.0] * columns + [7.0] * (tile * 64 - columns)


def test_results_round_once_to_the_card_format():
    """1/3 of the card is the nearest 9-bit fraction, ties away from zero."""
    x = torch.full((1, 64), 3.0, dtype=torch.float16, device="spyre")
    got = elementwise("reciprocal", empty(1, 64), x)
    assert got[0, 0].item() == round(2**11 / 3) / 2**11


@pytest.mark.parametrize("columns", SIZES)
def test_broadcast_of_columns_rows_and_constants(columns):
    x, column, row = random(5, columns, seed=3), random(5, 1, seed=4), random(1, columns, seed=5)
    out = empty(5, columns)
    operands = [
        operand(0, out, strides(out), 1),
        operand(1, x, strides(x), 1),
        operand(2, column, [128, 0]),
        operand(3, row, [0, 128], 1),
    ]
    run({"op": "elementwise", "function": "lerp", "extents": [5, columns], "operands": operands}, out, x, column, row)
    want = torch.lerp(x.cpu().float(), column.cpu().float().expand(5, columns), row.cpu().float())
    torch.testing.assert_close(out.cpu().float(), want, rtol=ULP, atol=1e-6)
    half = elementwise("mul", out, x, {"value": 0.5})
    assert torch.equal(half, x.cpu() * 0.5)


def test_constants_have_values_that_json_has_not():
    x = random(2, 70)
    assert torch.equal(elementwise("minimum", empty(2, 70), x, {"value": "inf"}), x.cpu())
    assert elementwise("add", empty(2, 70), x, {"value": "nan"}).isnan().all()
    ints = torch.arange(70, dtype=torch.int32).reshape(1, 70).to("spyre")
    three = {"value": 3, "format": "IEEE_INT32"}
    assert torch.equal(elementwise("mul", torch.empty_like(ints), three, ints), ints.cpu() * 3)


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


def reduce(function: str, x: torch.Tensor, along: str, start, slices=(1, 1), factor=None, dtype=None) -> torch.Tensor:
    """Folds a 2-D tensor along its rows ("r"), its columns ("c") or both; the result has extents of 1 there."""
    rows, columns = x.shape
    # The folded dimensions come last.
    order = {"c": [0, 1], "r": [1, 0], "rc": [0, 1]}[along]
    out = empty(1 if "r" in along else rows, 1 if "c" in along else columns, dtype=dtype or x.dtype)
    kept = [0 if dim in along else stride for dim, stride in zip("rc", strides(out), strict=True)]
    step = {
        "op": "reduce",
        "function": function,
        "constants": [start] if factor is None else [start, factor],
        "reduced": len(along),
        "extents": [x.shape[i] for i in order],
        "slices": list(slices),
        "operands": [
            operand(0, out, [kept[i] for i in order], -1 if "c" in along else order.index(1)),
            operand(1, x, [strides(x)[i] for i in order], order.index(1)),
        ],
    }
    run(step, out, x)
    return out.cpu()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("along", ["r", "c", "rc"])
@pytest.mark.parametrize("columns", SIZES)
def test_reductions_leave_the_padding_out(columns, along, dtype):
    x = random(20, columns, dtype=dtype, seed=columns)
    host, dims = x.cpu().float(), ["rc".index(dim) for dim in along]
    assert torch.equal(reduce("maximum", x, along, "-inf").float(), host.amax(dims, keepdim=True))
    assert torch.equal(reduce("minimum", x, along, "inf").float(), host.amin(dims, keepdim=True))
    want = host.double().sum(dims, keepdim=True)
    slack = host[0].numel() * 20 * 2**-24 * host.abs().double().sum(dims, keepdim=True)
    rounding = (ULP if dtype == torch.float16 else 2**-24) * want.abs()
    assert ((reduce("add", x, along, 0).double() - want).abs() <= rounding + slack).all()


def test_the_factor_of_a_reduction_comes_before_the_rounding():
    """3 * 1027 rounds to 3080; 1027 by itself would round to 1028 first and give 3084."""
    x = torch.ones(2, 1027, dtype=torch.float16, device="spyre")
    assert (reduce("add", x, "c", 0, factor=3) == 3080).all()
    ints = torch.arange(100, dtype=torch.int32).reshape(1, 100).to("spyre")
    assert reduce("add", ints, "c", 0).item() == 4950
    with pytest.raises(ValueError, match="constants: only a real result takes a factor"):
        reduce("add", ints, "c", 0, factor=0.5)


@pytest.mark.parametrize("along", ["r", "c", "rc"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_reductions_give_the_same_bits_however_they_are_divided(along, dtype):
    x = random(130, 2500, dtype=dtype)
    one = reduce("add", x, along, 0, dtype=torch.float32)
    for slices in [(1, 2), (1, 5), (1, 32), (2, 1), (5, 1), (32, 1), (4, 8)]:
        if along == "rc" and min(slices) > 1:
            continue
        assert torch.equal(one, reduce("add", x, along, 0, slices=slices, dtype=torch.float32)), slices


def matmul(a: torch.Tensor, b: torch.Tensor, dtype, slices=(1, 1, 1), transposed: bool = False) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[0] if transposed else b.shape[1]
    c = torch.zeros(m, n, dtype=dtype, device="spyre")
    row, stick = strides(b)
    step = {
        "op": "matmul",
        "extents": [m, n, k],
        "slices": list(slices),
        "operands": [
            operand(0, c, [*strides(c), 0], 1),
            operand(1, a, [strides(a)[0], 0, strides(a)[1]], 2),
            operand(2, b, [0, row, stick] if transposed else [0, stick, row], 2 if transposed else 1),
        ],
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


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_matmul_of_weights_in_one_byte_has_the_bits_of_the_same_weights_in_two(dtype, transposed):
    for m, k, n, slices in [(1, 130, 257, (1, 3, 1)), (8, 200, 130, (4, 2, 1)), (30, 65, 70, (5, 1, 1))]:
        generator = torch.Generator().manual_seed(m)
        weights = (torch.randn(k, n, generator=generator) * 30).to(dtype)
        weights = weights.t().contiguous() if transposed else weights
        a = random(m, k, seed=m)
        want = matmul(a, weights.half().to("spyre"), torch.float16, slices, transposed)
        assert torch.equal(matmul(a, weights.to("spyre"), torch.float16, slices, transposed), want)


@pytest.mark.parametrize("transposed", [False, True])
def test_matmul_gives_the_same_bits_on_any_number_of_cores(transposed):
    a, b = random(64, 2500, seed=1), random(2500, 256, seed=2)
    given = b.cpu().t().contiguous().to("spyre") if transposed else b
    one = matmul(a, given, torch.float16, transposed=transposed)
    for slices in [(8, 4, 1), (32, 1, 1), (1, 1, 2), (1, 1, 5), (1, 1, 32), (2, 4, 4)]:
        assert torch.equal(one, matmul(a, given, torch.float16, slices, transposed)), slices


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"function": "frobnicate"}, "function: the card has no tile operation 'frobnicate' on SEN169_FP16"),
        ({"function": "bitwise_and"}, "no tile operation 'bitwise_and'"),
        ({"function": "exp"}, "operands: elementwise takes 2, has 3"),
        ({"constants": [1.0]}, "constants: add takes 0, has 1"),
        ({"op": "reduce", "reduced": 1}, "operands: reduce takes 2, has 3"),
        ({"op": "matmul"}, "extents: needs m, n and k"),
        ({"transposed": True}, "step 0: unknown field 'transposed'"),
        ({"constants": ["much"]}, "step 0: the field 'constants' has something else than a number: 'much'"),
        ({"indirect": [{"operand": 2, "extent": 4, "stride": 128}]}, "indirect: elementwise takes no indices"),
        ({"tile": [4]}, "tile: needs one entry per extent, has 1 for 2"),
        ({"tile": [2, 32]}, "tile: 32 points of dimension 1 are not whole sticks of operand 0"),
    ],
)
def test_wrong_compute_steps_are_refused(change, message):
    x = random(4, 100)
    step = {"op": "elementwise", "function": "add", "extents": [4, 100], "operands": [operand(0, x, strides(x), 1)] * 3}
    with pytest.raises(ValueError, match=message):
        run(step | change, x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"argument": 0, "sticks": 1}, "operand 1: unknown field 'sticks'"),
        ({"value": 1, "offset": 0}, "operand 1: unknown field 'offset'"),
        ({"value": None}, "operand 1: the field 'value' has something else than a number: None"),
        ({"value": 1, "format": "FLOAT"}, "operand 1: there is no format 'FLOAT'"),
        ({"value": 1.5, "format": "IEEE_INT32"}, "operand 1: 1.500000 is no integer"),
        ({"argument": 0, "strides": [128, 512], "stick": 2}, "operand 1: stick dimension 2, there are 2"),
        ({"argument": 0, "strides": [128, 512], "stick": 1, "offset": 64}, "operand 1: .*offset 64 is not a multiple"),
        ({"argument": 0, "strides": [64, 512], "stick": 1}, "operand 1: .*stride 64 is not a multiple of their 128"),
    ],
)
def test_wrong_operands_are_refused(change, message):
    x = torch.zeros(4, 100, dtype=torch.int32 if change.get("format") == "IEEE_INT32" else torch.float16).to("spyre")
    written = operand(0, x, strides(x), 1)
    step = {"op": "elementwise", "function": "copy", "extents": [4, 100], "operands": [written, change]}
    with pytest.raises(ValueError, match=message):
        run(step, x)


@pytest.mark.parametrize(
    ("which", "stick", "message"),
    [
        (0, 0, "operand 0: C must have its sticks along n, dimension 1"),
        (1, 0, "operand 1: A must have its sticks along k, dimension 2"),
        (2, -1, "operand 2: B must have its sticks along n or k, dimension 1 or 2"),
    ],
)
def test_sticks_of_a_matmul_are_where_the_unit_wants_them(which, stick, message):
    x = random(64, 64)
    operands = [
        operand(0, x, [128, 8192, 0], 1),
        operand(0, x, [128, 0, 8192], 2),
        operand(0, x, [0, 8192, 128], 1),
    ]
    operands[which]["stick"] = stick
    with pytest.raises(ValueError, match=message):
        run({"op": "matmul", "extents": [64, 64, 64], "operands": operands}, x)


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
        "program 'sum', step 0 (elementwise add): core 0 reads element [0, 0] of argument 2 (float16[4, 64]), "
        "which was never written" in done.stderr
    )
