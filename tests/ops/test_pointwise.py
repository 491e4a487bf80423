"""Elementwise ops."""

import torch
import torch.nn.functional as F

from tests.ops.grid import (
    BOOL,
    EMPTY,
    FEW,
    FLOATS,
    INTEGERS,
    SHAPES,
    Case,
    Row,
    check,
    check_together,
    exact,
    mask,
    numbers,
    real,
)

inf, nan = float("inf"), float("nan")
NARROW = (torch.int8, torch.uint8, torch.int16)
SPECIAL = numbers(0.0, -0.0, 1.0, -1.5, inf, -inf, nan, 2.5, 0.5, 100.0)


def one(name, function, low=-4, high=4, **more):
    return Row(name, function, (real(low, high),), **more)


def two(name, function, low=-4, high=4, **more):
    return Row(name, function, (real(low, high), real(low, high)), **more)


def integers(name, function, low=-100, high=100, count=2, **more):
    return Row(name, function, (real(low, high),) * count, exact, INTEGERS, layouts=FEW, **more)


def whole(shape, dtype, generator):
    """Any number of a narrow integer dtype."""
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max + 1, shape, generator=generator, dtype=dtype)


def narrow(name, function, count=2):
    """Integers of few bits: results wrap."""
    return Row(f"narrow {name}", function, (whole,) * count, exact, NARROW, layouts=FEW)


def bools(name, function, count=2):
    return Row(name, function, (mask(),) * count, exact, BOOL, layouts=FEW)


def special(name, function, bound=exact):
    return Row(name, function, (SPECIAL,), bound, layouts=("plain", "sliced"), shapes=((10,), (13, 10)))


def rowwise(shape):
    return shape[-1:]


def columns(shape):
    return (*shape[:-1], 1)


ROWS = [
    two("add", torch.add, shapes=SHAPES + EMPTY),
    one("exp", torch.exp, shapes=SHAPES + EMPTY),
    one("compare", lambda x: x > 0.25, bound=exact, shapes=SHAPES + EMPTY),
    two("sub", torch.sub),
    two("mul", torch.mul),
    two("div", torch.div),
    two("add.alpha", lambda x, y: torch.add(x, y, alpha=0.5)),
    two("sub.alpha", lambda x, y: torch.sub(x, y, alpha=3)),
    one("rsub", lambda x: 1 - x),
    one("add.scalar", lambda x: x + 0.1, bound=lambda x: 2**-24 * 0.1),  # which fp32 has not exactly
    one("mul.scalar", lambda x: x * -3),
    one("div.scalar", lambda x: x / 3),
    one("scalar.div", lambda x: 2 / x, 0.5, 4),
    two("div.floor", lambda x, y: torch.div(x, y, rounding_mode="floor"), 1, 50, dtypes=(torch.float32,)),
    two("div.trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), 1, 50, dtypes=(torch.float32,)),
    two("fmod", torch.fmod, 1, 50, bound=exact),
    two("remainder", torch.remainder, 1, 50, bound=exact),
    two("hypot", torch.hypot),
    two("atan2", torch.atan2),
    two("copysign", torch.copysign, bound=exact),
    two("maximum", torch.maximum, bound=exact),
    two("minimum", torch.minimum, bound=exact),
    two("fmax", torch.fmax, bound=exact),
    two("fmin", torch.fmin, bound=exact),
    two("logaddexp", torch.logaddexp),
    Row("add.rows", torch.add, (real(), real(of=rowwise))),
    Row("mul.columns", torch.mul, (real(), real(of=columns))),
    Row("sub.outer", torch.sub, (real(of=columns), real(of=rowwise))),
    *(one(name, getattr(torch, name)) for name in ("exp2", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh")),
    *(one(name, getattr(torch, name)) for name in ("tanh", "asinh", "erf", "erfc", "sigmoid", "square", "reciprocal")),
    *(
        one(name, getattr(torch, name), bound=exact)
        for name in ("neg", "abs", "sign", "floor", "ceil", "trunc", "round")
    ),
    *(one(name, getattr(torch, name), bound=exact) for name in ("frac", "relu")),
    *(one(name, getattr(torch, name), 0.01, 8) for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt")),
    *(one(name, getattr(torch, name), -0.99, 0.99) for name in ("asin", "acos", "atanh")),
    one("acosh", torch.acosh, 1.01, 8),
    *(one(name, getattr(torch.special, name)) for name in ("i0", "i0e", "i1", "i1e", "log_ndtr", "erfcx")),
    *(one(name, getattr(torch, name), 0.1, 8, bound=lambda x: 2**-20) for name in ("lgamma", "digamma")),
    one("negative lgamma", torch.lgamma, -4, -0.1, bound=lambda x: 2**-20),
    one("negative digamma", torch.digamma, -0.9, -0.1, bound=lambda x: 2**-20),
    one("erfinv", torch.erfinv, -0.99, 0.99),
    one("logit", torch.logit, 0.01, 0.99),
    one("logit.eps", lambda x: torch.logit(x, 0.1), 0, 1, bound=lambda x: 2**-20),
    one("angle", torch.angle),
    one("round.decimals", lambda x: x.round(decimals=1), bound=exact, dtypes=(torch.float32,)),
    one("round.-decimals", lambda x: x.round(decimals=-1), -300, 300, bound=exact),
    one("isin", lambda x: torch.isin(x, x.reshape(-1)[:7]), bound=exact),
    one("isin.invert", lambda x: torch.isin(x, x.reshape(-1)[:3], invert=True), bound=exact),
    *(
        one(name, getattr(F, name))
        for name in ("silu", "gelu", "mish", "elu", "hardswish", "hardsigmoid", "selu", "celu")
    ),
    *(one(name, getattr(F, name)) for name in ("softplus", "leaky_relu", "logsigmoid", "softsign")),
    one("tanhshrink", F.tanhshrink, bound=lambda x: 2**-9 * x.tanh().abs()),
    one("gelu.tanh", lambda x: F.gelu(x, approximate="tanh")),
    one("relu6", F.relu6, bound=exact),
    one("hardtanh", F.hardtanh, bound=exact),
    one("softplus.beta", lambda x: F.softplus(x, beta=2, threshold=4)),
    one("elu.alpha", lambda x: F.elu(x, alpha=0.5)),
    one("clamp", lambda x: x.clamp(-1, 2), bound=exact),
    one("clamp.min", lambda x: x.clamp(min=-1), bound=exact),
    one("clamp.max", lambda x: x.clamp(max=0.5), bound=exact),
    one("clamp_min", lambda x: x.clamp_min(0), bound=exact),
    one("clamp_max", lambda x: x.clamp_max(0), bound=exact),
    Row("clamp.tensors", torch.clamp, (real(), real(-2, 0), real(0, 2)), exact),
    two("clamp.low", lambda x, y: x.clamp(min=y), bound=exact),
    two("clamp.high", lambda x, y: x.clamp(max=y), bound=exact),
    one("pow.2", lambda x: x**2),
    one("pow.3", lambda x: x**3),
    one("pow.half", lambda x: x**0.5, 0, 8),
    one("pow.-half", lambda x: x**-0.5, 0.1, 8),
    one("pow.-1", lambda x: x**-1, 0.1, 8),
    one("pow.-2", lambda x: x**-2, 0.1, 8),
    one("pow.1", lambda x: x**1, bound=exact),
    one("pow.0", lambda x: x**0, bound=exact),
    one("pow.1.7", lambda x: x**1.7, 0.1, 8),
    one("scalar.pow", lambda x: 2.5**x),
    Row("pow.tensor", torch.pow, (real(0.1, 4), real())),
    Row("lerp", torch.lerp, (real(), real(), real(0, 1)), lambda x, y, w: 2**-22 * (x.abs() + y.abs())),
    Row("lerp.scalar", lambda x, y: torch.lerp(x, y, 0.3), (real(), real()), lambda x, y: 2**-22 * (x.abs() + y.abs())),
    Row("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), (real(),) * 3, lambda *t: 2**-18),
    Row(
        "addcdiv",
        lambda x, y, z: torch.addcdiv(x, y, z, value=2),
        (real(), real(), real(1, 4)),
        lambda x, y, z: 2**-9 * (4 * y / z).abs(),
        apart=True,
    ),
    Row("where", torch.where, (mask(), real(), real()), exact),
    Row("where.scalar", lambda m, x: torch.where(m, x, 0.5), (mask(), real()), exact),
    Row("where.rows", torch.where, (mask(of=rowwise), real(), real(of=columns)), exact),
    Row("masked_fill", lambda x, m: x.masked_fill(m, -inf), (real(), mask()), exact),
    Row("masked_fill.rows", lambda x, m: x.masked_fill(m, 2), (real(), mask(of=rowwise)), exact, FLOATS + INTEGERS),
    *(two(name, getattr(torch, name), bound=exact) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(two(name, getattr(torch, name), bound=exact) for name in ("logical_and", "logical_or", "logical_xor")),
    one("logical_not", torch.logical_not, bound=exact),
    *(
        special(f"special {name}", getattr(torch, name))
        for name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf", "neg", "abs")
    ),
    *(special(f"special {name}", getattr(torch, name)) for name in ("round", "floor", "sign", "relu", "signbit")),
    *(
        special(f"special {name}", getattr(torch, name), lambda x: 0)
        for name in ("exp", "log", "sqrt", "tanh", "sigmoid")
    ),
    special("nan_to_num", lambda x: x.nan_to_num(1.5, 3.0, -3.0)),
    special("special maximum", lambda x: torch.maximum(x, x.flip(0))),
    special("special fmin", lambda x: torch.fmin(x, x.flip(0))),
    special("special eq", lambda x: x == x.flip(0)),
    special("special to bool", lambda x: x.bool()),
    special("special clamp", lambda x: x.clamp(-1, 1)),
    integers("integer add", torch.add),
    integers("integer add.alpha", lambda x, y: torch.add(x, y, alpha=3)),
    integers("integer sub", torch.sub),
    integers("integer mul", torch.mul),
    integers("integer div", torch.div, 1, 100),
    integers("integer div.floor", lambda x, y: torch.div(x - 50, y, rounding_mode="floor"), 1, 100),
    integers("integer div.trunc", lambda x, y: torch.div(x - 50, y, rounding_mode="trunc"), 1, 100),
    integers("integer floor_divide", lambda x: x // 7, count=1),
    integers("integer remainder", lambda x: x % 7, count=1),
    integers("integer fmod", lambda x, y: torch.fmod(x - 50, y), 1, 100),
    integers("integer neg", torch.neg, count=1),
    integers("integer abs", torch.abs, count=1),
    integers("integer sign", torch.sign, count=1),
    integers("integer square", torch.square, count=1),
    Row("integer pow", torch.pow, (real(-8, 8), real(-1, 9)), exact, INTEGERS, layouts=FEW),
    Row("integer scalar.pow", lambda x: 2**x, (real(0, 30),), exact, INTEGERS, layouts=FEW),
    integers("gcd", torch.gcd),
    integers("lcm", torch.lcm),
    integers("integer angle", torch.angle, count=1),
    integers("integer isin", lambda x, y: torch.isin(x, y.reshape(-1)[:9])),
    integers("integer pow.3", lambda x: x**3, count=1),
    integers("integer pow.0", lambda x: x**0, count=1),
    integers("integer clamp", lambda x: x.clamp(-5, 50), count=1),
    integers("integer clamp.min", lambda x: x.clamp(min=3), count=1),
    integers("integer maximum", torch.maximum),
    integers("integer minimum", torch.minimum),
    *(integers(f"integer {name}", getattr(torch, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(integers(f"integer {name}", getattr(torch, name)) for name in ("logical_and", "logical_or", "logical_xor")),
    *(integers(name, getattr(torch, name)) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
    integers("bitwise_not", torch.bitwise_not, count=1),
    integers("shift_left", lambda x, y: x << y, 0, 9),
    integers("shift_right", lambda x: x >> 2, count=1),
    integers("integer where", lambda x, y: torch.where(x > y, x, 5)),
    integers("integer floor", torch.floor, count=1),
    integers("integer round", torch.round, count=1),
    integers("integer relu", torch.relu, count=1),
    Row("integer sqrt", torch.sqrt, (real(0, 100),), dtypes=INTEGERS),
    Row("integer exp", torch.exp, (real(-5, 5),), dtypes=INTEGERS),
    *(narrow(name, getattr(torch, name)) for name in ("add", "sub", "mul", "maximum", "bitwise_xor", "eq", "lt")),
    *(narrow(name, getattr(torch, name), 1) for name in ("neg", "square", "bitwise_not", "sign", "logical_not")),
    narrow("abs", lambda x: x.abs(), 1),
    narrow("add.alpha", lambda x, y: torch.add(x, y, alpha=7)),
    narrow("floor_divide", lambda x, y: x // (y | 1)),
    narrow("remainder", lambda x, y: x % (y | 1)),
    narrow("pow", lambda x: x**5, 1),
    narrow("shift", lambda x: (x << 3) + (x >> 1), 1),
    narrow("clamp", lambda x: x.clamp(3, 90), 1),
    narrow("where", lambda x, y: torch.where(x > y, x, 5)),
    narrow("addcmul", lambda x, y: torch.addcmul(x, x, y, value=3)),
    narrow("div", torch.div),
    *(
        bools(f"bool {name}", getattr(torch, name))
        for name in ("logical_and", "logical_or", "logical_xor", "eq", "ne", "lt", "maximum")
    ),
    *(
        bools(f"bool {name}", getattr(torch, name))
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "add", "mul")
    ),
    bools("bool not", torch.logical_not, 1),
    bools("bool bitwise_not", torch.bitwise_not, 1),
    bools("bool to sum", lambda x, y: x * 2 + y),
    bools("bool where", lambda x, y: torch.where(x, y, True)),
]


def test_eager(case: Case) -> None:
    check(case)


def test_compiled(cases: list[Case]) -> None:
    check_together(cases)
