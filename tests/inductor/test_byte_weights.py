"""Weights of one byte with scales: products read them as they lie, and widen them on the way."""

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_spyre.execution.launches import Launch, listening
from torch_spyre.model_utils import load_model_to_spyre

FORMATS = {torch.int8: "SENINT8", torch.float8_e4m3fn: "SEN143_FP8", torch.float8_e5m2: "SEN152_FP8"}
ODD = [(1, 1, 5), (3, 129, 77), (65, 200, 300)]


@pytest.fixture(params=FORMATS, ids=str)
def narrow(request) -> torch.dtype:
    return request.param


def weights(*size: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    if dtype == torch.int8:
        return torch.randint(-128, 128, size, dtype=dtype)
    return (torch.randn(size) * 4).to(dtype)


def activations(*size: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """Halves that the card has as well: eight bits and a sign."""
    torch.manual_seed(1)
    return (torch.randint(-255, 256, size) / 64).to(dtype)


def run(function: Callable[..., Tensor], *given: Tensor) -> tuple[Tensor, list[Launch]]:
    """What a function gives on the card, compiled, and what was launched for it."""
    torch._dynamo.reset()
    heard: list[Launch] = []
    on_card = [each.to("spyre") for each in given]
    with listening(heard.append):
        return torch.compile(function, dynamic=False)(*on_card).cpu(), heard


def steps(launches: list[Launch]) -> list[dict]:
    return [step for launch in launches for job in launch.code["steps"] for step in job["program"]["steps"]]


def check(function: Callable[..., Tensor], x: Tensor, w: Tensor, *more: Tensor, reads_bytes: bool = True) -> None:
    """As on the CPU in fp32, as with weights that are wide already, and without a cast of them on the card."""
    got, launches = run(function, x, w, *more)
    want = function(x.float(), w, *(each.float() for each in more))
    torch.testing.assert_close(got.float(), want, rtol=2**-8, atol=2**-8 * float(want.abs().max()))
    assert torch.equal(got, run(function, x, w.to(x.dtype), *more)[0])
    (product,) = (step for step in steps(launches) if step["op"] == "matmul")
    assert (product["operands"][2]["format"] == FORMATS[w.dtype]) is reads_bytes
    casts = [step for step in steps(launches) if step.get("function") in ("to_real", "copy") or step["op"] == "copy"]
    assert bool(casts) is not reads_bytes


@pytest.mark.parametrize("shape", ODD, ids=str)
@pytest.mark.parametrize("scaled", [True, False])
def test_a_linear_layer(narrow, shape, scaled):
    rows, inputs, outputs = shape
    scale = activations(outputs).abs() / 64 if scaled else torch.ones(())
    check(
        lambda x, w, s: F.linear(x, w.to(x.dtype)) * s,
        activations(rows, inputs),
        weights(outputs, inputs, dtype=narrow),
        scale.half(),
    )


@pytest.mark.parametrize("shape", ODD, ids=str)
def test_weights_by_inputs(narrow, shape):
    rows, inputs, outputs = shape
    check(lambda x, w: x @ w.to(x.dtype), activations(rows, inputs), weights(inputs, outputs, dtype=narrow))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_activations(narrow, dtype):
    check(lambda x, w: x @ w.to(x.dtype).T, activations(3, 70, dtype=dtype), weights(40, 70, dtype=narrow))


def test_batches(narrow):
    x, w = activations(3, 5, 130), weights(3, 130, 70, dtype=narrow)
    check(lambda x, w: torch.bmm(x, w.to(x.dtype)), x, w)
    check(lambda x, w: x @ w.to(x.dtype), x, w[0])


def test_a_bias(narrow):
    x, w = activations(5, 130), weights(70, 130, dtype=narrow)
    check(lambda x, w, b: F.linear(x, w.to(x.dtype), b), x, w, activations(70))


def test_a_part_of_the_weights(narrow):
    x, w = activations(5, 64), weights(70, 130, dtype=narrow)
    check(lambda x, w: x @ w[2:, 3:67].to(x.dtype).T, x, w)


def test_every_value_is_exact(narrow):
    """All 256 of them, infinities and NaN included, times one."""
    every = torch.arange(256, dtype=torch.uint8).view(narrow).reshape(256, 1)
    got, launches = run(lambda x, w: x @ w.to(x.dtype).T, torch.ones(1, 1).half(), every)
    assert torch.equal(got.float().nan_to_num(nan=12345.0), every.float().T.nan_to_num(nan=12345.0))
    assert any(step["operands"][2]["format"] == FORMATS[narrow] for step in steps(launches))


def test_a_product_reads_wide_weights_first(narrow):
    """Only the second operand may be narrow: the cast stays."""
    check(lambda x, w: w.to(x.dtype) @ x, activations(130, 5), weights(70, 130, dtype=narrow), reads_bytes=False)


def test_weights_that_are_wanted_wide_as_well():
    x, w = activations(5, 130), weights(70, 130, dtype=torch.int8)

    def function(x: Tensor, w: Tensor) -> Tensor:
        wide = w.to(x.dtype)
        return (x @ wide.T) + wide.sum(1)

    check(function, x, w, reads_bytes=False)


def test_weights_that_the_program_changes():
    def function(x: Tensor, w: Tensor) -> Tensor:
        wide = w.to(x.dtype)
        w.zero_()
        return x @ wide.T

    x, w = activations(5, 130), weights(70, 130, dtype=torch.int8)
    got, _ = run(function, x, w)
    want = function(x.float(), w.clone())
    torch.testing.assert_close(got.float(), want, rtol=2**-8, atol=2**-8 * float(want.abs().max()))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_int8_pack(compiled, dtype):
    x, w, scales = activations(5, 130, dtype=dtype), weights(70, 130, dtype=torch.int8), activations(70).abs() / 64
    given = [each.to("spyre") for each in (x, w, scales.to(dtype))]
    function = torch.compile(torch._weight_int8pack_mm) if compiled else torch._weight_int8pack_mm
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.spyre.FallbackWarning)
        got = function(*given)
    want = x.float() @ w.float().T * scales.to(dtype).float()
    precision = max(2**-8, torch.finfo(dtype).eps)
    torch.testing.assert_close(got.cpu().float(), want, rtol=precision, atol=2**-8)


def test_integers_times_integers_are_as_before():
    x, w = weights(70, 64, dtype=torch.int8), weights(64, 130, dtype=torch.int8)
    got, _ = run(torch._int_mm, x, w)
    assert torch.equal(got.long(), x.long() @ w.long())


class Quantized(torch.nn.Module):
    """As weight-only quantisation leaves a Linear: bytes and scales are buffers."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.register_buffer("weight", weights(outputs, inputs, dtype=dtype))
        self.register_buffer("scales", torch.full((outputs,), 0.125, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype)) * self.scales


@pytest.mark.parametrize("move", [load_model_to_spyre, lambda module: module.to("spyre")])
def test_decoding_takes_half_the_time_of_halves(narrow, move):
    """By the clock: a row of activations waits for weights, of which there is one byte instead of two."""

    def microseconds(layer: torch.nn.Module) -> float:
        heard: list[Launch] = []
        torch._dynamo.reset()
        on_card = move(layer)
        with torch.no_grad(), listening(heard.append):
            torch.compile(on_card)(activations(1, 1024).to("spyre"))
        return sum(step["us"] for launch in heard for step in launch.plan.step_times())

    wide = torch.nn.Linear(1024, 2048, bias=False).half()
    assert microseconds(Quantized(1024, 2048, narrow)) < 0.6 * microseconds(wide)
