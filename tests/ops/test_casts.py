"""Casts between all dtypes of the card, numbers that their target cannot hold, and float8 as storage."""

import itertools

import pytest
import torch

from tests.ops.grid import run, same

inf, nan = float("inf"), float("nan")
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
REALS = (torch.float16, torch.bfloat16, torch.float32)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
DTYPES = (*REALS, *FLOAT8, *INTEGERS, torch.bool)
VALUES = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.75, 100.0, -77.0, 127.0, 0.0625, 12.0] * 7)[:65]


def name(dtype):
    return str(dtype).removeprefix("torch.")


def on_card(values, dtype):
    """As numbers of this dtype, on the card and as the card has them."""
    if not dtype.is_floating_point and dtype != torch.bool:
        values = values.clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    card = values.to(dtype).to("spyre")
    return card, card.cpu()


def close(got, want):
    """Equal, apart from the bits that float16 and bfloat16 do not have on the card."""
    if want.dtype in (torch.float16, torch.bfloat16):
        want = want.to("spyre").cpu()
    return got.dtype == want.dtype and same(got.float() if got.dtype in FLOAT8 else got, wide(want))


def wide(x):
    return x.float() if x.dtype in FLOAT8 else x


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("source", DTYPES, ids=name)
def test_every_pair(source, compiled):
    card, host = on_card(VALUES, source)

    def casts(x):
        return [x.to(target) for target in DTYPES if target != source]

    for got, want in zip(run(casts, [card], 32, compiled), casts(host), strict=True):
        assert close(got.cpu(), want), (source, want.dtype)


WRAPPED = torch.tensor([0, 1, -1, 127, 128, 255, 256, 300, -129, 32767, 32768, -32769, 2**31 - 1, -(2**31)] * 5)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("source", [torch.int64, torch.int32], ids=name)
def test_integers_wrap(source, compiled):
    def casts(x):
        return [x.to(torch.int8), x.to(torch.uint8), x.to(torch.int16), x.to(torch.bool)]

    x = WRAPPED.to(source)
    for got, want in zip(run(casts, [x.to("spyre")], 32, compiled), casts(x), strict=True):
        assert torch.equal(got.cpu(), want)


BEYOND = torch.tensor([3e9, nan, -300.0, 300.0, inf, -inf, -3e9, 2.5e19, 2.0**31, -(2.0**31)] * 7)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("target", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool], ids=name)
def test_reals_beyond_integers(target, compiled):
    """As on x86: INT32_MIN, of which narrower integers keep the low bits."""
    (got,) = run(lambda x: x.to(target), [BEYOND.to("spyre")], 32, compiled)
    assert torch.equal(got.cpu(), BEYOND.to(target))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16], ids=name)
def test_reals_saturate_as_int64(source, compiled):
    """At the ends of the 32 bits that the card keeps, NaN at the least."""
    x, host = on_card(BEYOND, source)
    want = host.double().nan_to_num(-inf).clamp(-(2**31), 2**31 - 1).long()
    (got,) = run(lambda x: x.to(torch.int64), [x], 32, compiled)
    assert torch.equal(got.cpu(), want)


def test_reals_saturate_as_int64_in_copies():
    want = BEYOND.double().nan_to_num(-inf).clamp(-(2**31), 2**31 - 1).long()
    card = BEYOND.to("spyre")
    assert torch.equal(torch.zeros(70, dtype=torch.int64, device="spyre").copy_(card).cpu(), want)
    assert torch.equal(torch.zeros(70, dtype=torch.int64, device="spyre").copy_(BEYOND).cpu(), want)
    assert torch.equal(BEYOND.to("spyre", torch.int64).cpu(), want)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_an_int64_that_is_not_used_is_no_error(compiled):
    """Positions in buckets, as T5 has them: the logarithm of 0 is not chosen."""

    def buckets(distance):
        far = 4 + (torch.log(distance.float() / 4) / 3.47 * 4).to(torch.long)
        return torch.where(distance < 4, distance, torch.min(far, torch.full_like(far, 7)))

    distance = torch.arange(100)
    (got,) = run(buckets, [distance.to("spyre")], 32, compiled)
    assert torch.equal(got.cpu(), buckets(distance))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("target", FLOAT8, ids=name)
@pytest.mark.parametrize("source", REALS, ids=name)
def test_float8_of_every_kind_of_number(source, target, compiled):
    values = torch.cat(
        [torch.linspace(-20, 20, 301), torch.tensor([448.0, 463.9, 464.1, 500.0, 6e4, 1e-3, 2**-9, 1e-7])]
    )
    x, host = on_card(torch.cat([values, -values, torch.tensor([inf, -inf, nan])]), source)
    (got,) = run(lambda x: x.to(target), [x], 32, compiled)
    assert close(got.cpu(), host.to(target))


@pytest.mark.parametrize("target", FLOAT8, ids=name)
def test_float8_moves(target):
    """Storage: copies, views and shapes keep the bits; arithmetic goes through another dtype, as elsewhere."""
    x = torch.linspace(-4, 4, 6 * 65).reshape(6, 65).to(target)
    card = x.to("spyre")
    for function in (
        lambda x: x.clone(),
        lambda x: x.t().contiguous(),
        lambda x: x[1:, 3:].clone(),
        lambda x: torch.cat([x, x]),
        lambda x: x.reshape(-1)[5:],
    ):
        assert close(function(card).cpu(), function(x))
    total = (card.to(torch.float16) + card.to(torch.float16)).to(target)
    assert close(total.cpu(), (x.float() + x.float()).to(target))


@pytest.mark.parametrize("left, right", list(itertools.product(INTEGERS, INTEGERS)), ids=name)
def test_promotion_of_integers(left, right):
    """PyTorch's dtype and its value, wrapped in it."""

    def mixed(x, y):
        return [x + y, x * y[0], x - 3, torch.maximum(x, y), torch.where(x > 0, x, y), x & y, x / (y.abs() + 1)]

    (x, a), (y, b) = on_card(VALUES, left), on_card(VALUES.flip(0), right)
    for got, want in zip(run(mixed, [x, y], 32), mixed(a, b), strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got.cpu(), want)


DIVISIONS = {
    "floor_divide": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "fmod": torch.fmod,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "number": lambda x, y: x // 0,
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("division", DIVISIONS)
def test_integers_divided_by_zero(division, compiled):
    x, y = torch.arange(100), torch.arange(100) - 70
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        DIVISIONS[division](x, y)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run(DIVISIONS[division], [x.to("spyre"), y.to("spyre")], 32, compiled)[0].cpu()


NUMBERS = {
    "lt": lambda x: x < 300,
    "eq": lambda x: x == 300,
    "add": lambda x: x + 300,
    "rsub": lambda x: 300 - x,
    "floor_divide": lambda x: x // 300,
    "unsigned": lambda x: x.to(torch.uint8) // -1,
    "unsigned lt": lambda x: x.to(torch.uint8) < -1,
    "unsigned clamp": lambda x: x.to(torch.uint8).clamp(min=-1),
    "no dimensions": lambda x: torch.maximum(x, torch.tensor(300, device=x.device)),
    "wide": lambda x: x.int() < 2**40,
    "power": lambda x: 2 ** x.clamp(0, 5),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_numbers_wrap_like_elements(compiled):
    x = torch.tensor([1, 100, -5, 44, 127, -128], dtype=torch.int8)

    def all_of_them(x):
        return [function(x) for function in NUMBERS.values()]

    wanted = all_of_them(x)
    for name, got, want in zip(NUMBERS, run(all_of_them, [x.to("spyre")], 32, compiled), wanted, strict=True):
        assert got.dtype == want.dtype and torch.equal(got.cpu(), want), name


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clamp(-300, 300),
        lambda x: torch.where(x > 0, x, 300),
        lambda x: x.masked_fill(x > 0, 300),
        lambda x: torch.add(x, x, alpha=300),
        lambda x: x**300,
        lambda x: x.fill_(300),
    ],
    ids=["clamp", "where", "masked_fill", "alpha", "pow", "fill"],
)
def test_numbers_that_do_not_fit_are_errors(function):
    x = torch.tensor([1, 100, -5], dtype=torch.int8)
    for given in (x, x.to("spyre")):
        with torch.spyre.fallback("count"), pytest.raises(RuntimeError, match="without overflow"):
            function(given)
    torch.spyre.reset_fallback_counts()  # the error is the host's
