"""Numbers of a call are given at the launch: one kernel for all of them, and the bits of kernels compiled for each."""

import math

import pytest
import torch

from torch_spyre import _C, eager

REALS = (torch.float16, torch.bfloat16, torch.float32)
WHOLE = (torch.int32, torch.int64, torch.int16)
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.123, 2.5, math.inf, -math.inf, math.nan, 1e-30, 65504.5, -1e39, 3, -7, 0, 1]
INTEGERS = [0, 1, -1, 3, -7, 100]


# name -> (op of two tensors and a number, dtypes it is for)
OPS = {
    "mul": (lambda x, y, k: x * k, (*REALS, *WHOLE)),
    "add": (lambda x, y, k: x + k, (*REALS, *WHOLE)),
    "add alpha": (lambda x, y, k: torch.add(x, y, alpha=k), (*REALS, *WHOLE)),
    "sub": (lambda x, y, k: x - k, REALS),
    "sub alpha": (lambda x, y, k: torch.sub(x, y, alpha=k), (*REALS, *WHOLE)),
    "rsub": (lambda x, y, k: k - x, REALS),
    "div": (lambda x, y, k: x / k, (*REALS, torch.int32)),
    "reciprocal": (lambda x, y, k: k / x, REALS),
    "fmod": (lambda x, y, k: torch.fmod(x, k), REALS),
    "eq": (lambda x, y, k: x == k, (*REALS, *WHOLE)),
    "lt": (lambda x, y, k: x < k, (*REALS, *WHOLE)),
    "clamp": (lambda x, y, k: x.clamp(k, 3), (*REALS, torch.int32)),
    "clamp_max": (lambda x, y, k: x.clamp_max(k), REALS),
    "lerp": (lambda x, y, k: torch.lerp(x, y, k), REALS),
    "addcmul": (lambda x, y, k: torch.addcmul(x, x, y, value=k), (*REALS, torch.int32)),
    "addcdiv": (lambda x, y, k: torch.addcdiv(x, x, y, value=k), REALS),
    "where": (lambda x, y, k: torch.where(x > y, x, k), REALS),
    "masked_fill": (lambda x, y, k: x.masked_fill(x > y, k), REALS),
    "leaky_relu": (lambda x, y, k: torch.nn.functional.leaky_relu(x, k), REALS),
    "pow of a number": (lambda x, y, k: k**y, REALS),
    "fill_": (lambda x, y, k: x.clone().fill_(k), (*REALS, *WHOLE)),
    "mul_": (lambda x, y, k: x.clone().mul_(k), REALS),
    "add_ alpha": (lambda x, y, k: x.clone().add_(y, alpha=k), REALS),
    "addcdiv_": (lambda x, y, k: x.clone().addcdiv_(x, y, value=k), REALS),
    "out": (lambda x, y, k: torch.mul(x, k, out=torch.empty_like(x)), REALS),
    "number on the host": (lambda x, y, k: x * torch.tensor(k), REALS),
}


def tensors(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    if dtype.is_floating_point:
        x = torch.linspace(-3, 3, 3 * 70).reshape(3, 70)
        x[0, :4] = torch.tensor([math.inf, -math.inf, math.nan, -0.0])
        y = torch.linspace(2, -1.9, 3 * 70).reshape(3, 70)
    else:
        x = torch.arange(-100, 110).reshape(3, 70)
        y = torch.arange(3 * 70).reshape(3, 70) % 17 + 1
    return x.to(dtype).to("spyre"), y.to(dtype).to("spyre")


def bits(result: torch.Tensor) -> torch.Tensor:
    """Equal where the results are, the signs of zeros and NaNs included."""
    host = result.cpu()
    if not host.is_floating_point():
        return host
    return torch.where(host.isnan(), 77, host.view({2: torch.int16, 4: torch.int32}[host.element_size()]))


def results(name: str, dtype: torch.dtype, numbers: list) -> list[torch.Tensor | str]:
    x, y = tensors(dtype)

    def one(number):
        try:
            return bits(OPS[name][0](x, y, number))
        except RuntimeError as error:
            return str(error)

    return [one(number) for number in numbers]


def shares_kernels(number: float, dtype: torch.dtype) -> bool:
    """Some ops refuse numbers that are too large for the dtype: those, and NaN, have a kernel each."""
    if not dtype.is_floating_point:
        return True
    return math.isinf(number) or abs(number) <= torch.finfo(dtype).max


def compare(monkeypatch, name: str, dtype: torch.dtype, numbers: list) -> None:
    _C.forget_kernels()
    before = _C.kernel_counts()["compiled"]
    results(name, dtype, [number for number in numbers if shares_kernels(number, dtype)])
    compiled = _C.kernel_counts()["compiled"] - before
    found = results(name, dtype, numbers)
    once = eager.compile_call
    monkeypatch.setattr(eager, "compile_call", lambda op, args, kwargs, open: once(op, args, kwargs, []))
    _C.forget_kernels()
    wanted = results(name, dtype, numbers)
    _C.forget_kernels()
    for number, a, b in zip(numbers, found, wanted, strict=True):
        assert a == b if isinstance(a, str) or isinstance(b, str) else torch.equal(a, b), (name, dtype, number)
    if dtype.is_floating_point or dtype == torch.int64:  # in other integers numbers may wrap, and each has its kernel
        assert compiled <= 4  # for integers, reals, and the default where there is one; for another op of the row


def numbers_for(dtype: torch.dtype) -> list:
    return NUMBERS if dtype.is_floating_point else INTEGERS


@pytest.mark.parametrize("name", OPS)
def test_bits_are_those_of_kernels_for_each_number(monkeypatch, name):
    dtype = OPS[name][1][len(name) % len(OPS[name][1])]
    compare(monkeypatch, name, dtype, numbers_for(dtype)[::2] + [0.123 if dtype.is_floating_point else 5])


@pytest.mark.slow
@pytest.mark.parametrize("name, dtype", [(name, dtype) for name, (_, dtypes) in OPS.items() for dtype in dtypes])
def test_bits_of_every_number(monkeypatch, name, dtype):
    compare(monkeypatch, name, dtype, numbers_for(dtype))


def test_one_kernel_for_all_numbers_of_a_kind():
    _C.forget_kernels()
    x = torch.ones(4, 64, device="spyre")
    before = _C.kernel_counts()
    for i in range(20):
        assert (x * (i + 0.5))[0, 0].item() == i + 0.5
    after = _C.kernel_counts()
    assert after["compiled"] - before["compiled"] == 1 and after["kept"] == 1


def test_numbers_that_a_lowering_looks_at_have_their_own_kernels():
    _C.forget_kernels()
    x = torch.full((4, 64), 3.0, device="spyre")
    before = _C.kernel_counts()["compiled"]
    assert [(x**k)[0, 0].item() for k in (2, 3, 2, -1)] == pytest.approx([9, 27, 9, 1 / 3])
    assert _C.kernel_counts()["compiled"] - before == 3


def test_launches_with_other_numbers_under_way():
    x = torch.ones(512, 512, device="spyre")
    streams = [torch.spyre.Stream() for _ in range(4)]
    torch.spyre.synchronize()
    found = {}
    for k in range(32):
        with torch.spyre.stream(streams[k % 4]):
            found[k] = x * (k + 0.5)
    torch.spyre.synchronize()
    assert all(result.min().item() == result.max().item() == k + 0.5 for k, result in found.items())


@pytest.mark.parametrize("foreach", [False, None])
@pytest.mark.parametrize(
    "make",
    [
        lambda p, **more: torch.optim.AdamW(p, lr=0.01, **more),
        lambda p, **more: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, **more),
        lambda p, **more: torch.optim.RMSprop(p, lr=0.01, **more),
    ],
    ids=["AdamW", "SGD", "RMSprop"],
)
def test_optimizers_compile_in_their_first_steps_only(make, foreach):
    torch.manual_seed(0)
    host = [torch.nn.Parameter(torch.randn(8, 64)), torch.nn.Parameter(torch.randn(64))]
    card = [torch.nn.Parameter(p.detach().to("spyre")) for p in host]
    both = make(host, foreach=foreach), make(card, foreach=foreach)
    with torch.spyre.fallback("error"):
        for step in range(5):
            for optimizer, parameters in zip(both, (host, card), strict=True):
                optimizer.param_groups[0]["lr"] *= 0.9
                for p in parameters:
                    p.grad = (p.detach() * (step + 1)).clone()
                compiled = _C.kernel_counts()["compiled"]
                optimizer.step()
            assert step < 2 or _C.kernel_counts()["compiled"] == compiled
    for a, b in zip(card, host, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-5, atol=1e-6)


HALF, DOUBLE, TWO = torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64), torch.tensor(2)
ON_HOST = {
    "clamp_": lambda x, at: x.clone().clamp_(max=HALF),
    "clamp": lambda x, at: x.clamp(min=HALF, max=DOUBLE),
    "maximum": lambda x, at: torch.maximum(HALF, x),
    "minimum": lambda x, at: torch.minimum(x, DOUBLE),
    "fmin": lambda x, at: torch.fmin(x, TWO),
    "fmax_": lambda x, at: torch.fmax(x, HALF, out=torch.empty_like(x)),
    "addcmul": lambda x, at: torch.addcmul(x, x, HALF, value=0.25),
    "addcdiv_": lambda x, at: x.clone().addcdiv_(x, HALF),
    "masked_fill": lambda x, at: x.masked_fill(x > 0, HALF),
    "masked_fill_": lambda x, at: x.clone().masked_fill_(x > 0, TWO),
    "logical_and": lambda x, at: torch.logical_and(x, HALF),
    "heaviside": lambda x, at: torch.heaviside(x, HALF),
    "hypot": lambda x, at: torch.hypot(x, HALF),
    "xlogy": lambda x, at: torch.xlogy(x, HALF),
    "gcd": lambda x, at: torch.gcd(at, TWO),
    "maximum of an integer and a half": lambda x, at: torch.maximum(at, HALF),
    "index_fill": lambda x, at: x.index_fill(0, at, HALF),
    "index_put": lambda x, at: x.index_put((at,), HALF),
    "index_put_ of sums": lambda x, at: x.clone().index_put_((at,), HALF, accumulate=True),
    "a mask": lambda x, at: x.clone().index_put_((x > 0,), HALF),
}


@pytest.mark.parametrize("name", ON_HOST)
def test_tensors_on_the_host_without_dimensions(name):
    x, at = torch.linspace(-1, 1, 6).reshape(3, 2), torch.tensor([0, 2])
    want = ON_HOST[name](x, at)
    with torch.spyre.fallback("error"):
        result = ON_HOST[name](x.to("spyre"), at.to("spyre"))
    assert result.dtype == want.dtype
    torch.testing.assert_close(result.cpu(), want)


def test_such_tensors_share_a_kernel():
    x = torch.linspace(-1, 1, 70).to("spyre")
    torch.maximum(x, torch.tensor(0.1))
    before = _C.kernel_counts()["compiled"]
    assert torch.maximum(x, torch.tensor(0.3)).amin().item() == pytest.approx(0.3)
    torch.maximum(x, torch.tensor(0.5))
    assert _C.kernel_counts()["compiled"] <= before + 1  # amin
