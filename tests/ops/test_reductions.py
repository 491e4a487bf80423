"""Folds, scans, positions, softmax and norms."""

import math

import torch
import torch.nn.functional as F

from tests.ops.grid import (
    BOOL,
    FEW,
    INTEGERS,
    LAYOUTS,
    Case,
    Row,
    check,
    check_together,
    distinct,
    exact,
    mask,
    numbers,
    real,
    total,
)

inf, nan = float("inf"), float("nan")
NARROW = (torch.int8, torch.uint8)
ALL_INTEGERS = (*INTEGERS, *NARROW)
LOSSLESS = tuple(name for name in LAYOUTS if name != "expanded")  # the order of equal values is PyTorch's secret
DIMS = {"last": (-1,), "first": (0,), "all": None, "ends": (0, -1)}


def along(name, function, bound=None, **more):
    """A reduction over each of DIMS."""
    rows = []
    for which, dims in DIMS.items():

        def reduced(x, dims=dims):
            return function(x) if dims is None else function(x, sorted({d % x.dim() for d in dims}))

        def terms(x, dims=dims):
            return x.numel() if dims is None else math.prod(x.shape[d] for d in {d % x.dim() for d in dims})

        limit = total(reduced, terms) if bound is None else bound
        rows.append(Row(f"{name} {which}", reduced, bound=limit, **more))
    return rows


def scan(name, function, bound, **more):
    return [
        Row(f"{name} {d}", lambda x, d=d: function(x, d), bound=bound(lambda x, d=d: function(x, d), d), **more)
        for d in (0, -1)
    ]


X = (real(),)


def row(name, function, bound=exact, inputs=X, **more):
    return Row(name, function, inputs, bound, **more)


def shifted(x, dim=-1):
    """softmax subtracts the largest, rounds, and takes the exponential: its argument's rounding is relative there."""
    return x.softmax(dim) * (2**-9 * (x.amax(dim, True) - x) + 2**-8)


def normal(x):
    """The mean's error counts as often as the deviation, or eps, is smaller than one."""
    return (
        2**-20 + x.shape[-1] * 2**-23 * x.abs().mean(-1, True) * (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    )


ROWS = [
    *along("sum", torch.sum),
    *along("mean", torch.mean),
    *along("amax", torch.amax, exact),
    *along("amin", torch.amin, exact),
    row(
        "sum keepdim",
        lambda x: x.sum(-1, keepdim=True),
        total(lambda x: x.sum(-1, keepdim=True), lambda x: x.shape[-1]),
    ),
    row("sum fp32", lambda x: x.sum(-1, dtype=torch.float32), total(lambda x: x.sum(-1), lambda x: x.shape[-1])),
    row("max", torch.max),
    row("min", torch.min),
    row("max.dim", lambda x: tuple(x.max(-1))),
    row("max.dim 0", lambda x: tuple(x.max(0, keepdim=True))),
    row("min.dim", lambda x: tuple(x.min(-1))),
    row("aminmax", lambda x: tuple(x.aminmax())),
    row("argmax", torch.argmax),
    row("argmax.dim", lambda x: x.argmax(-1)),
    row("argmax.dim 0", lambda x: x.argmax(0, keepdim=True)),
    row("argmin", torch.argmin),
    row("argmin.dim", lambda x: x.argmin(-1)),
    row("prod", lambda x: x.prod(-1), lambda x: 2**-18 * x.prod(-1).abs(), (real(0.95, 1.05),)),
    row(
        "prod all", lambda x: x.prod(), lambda x: 2**-10 * x.prod().abs(), (real(0.99, 1.01),), dtypes=(torch.float32,)
    ),
    row("any", torch.any),
    row("any.dim", lambda x: (x > 3.9).any(-1)),
    row("all.dim", lambda x: (x > -3.9).all(0)),
    row("count", lambda x: (x > 0).sum(-1)),
    row("integer sum", lambda x: x.sum(-1), dtypes=INTEGERS, layouts=FEW),
    row("integer sum all", torch.sum, dtypes=INTEGERS, layouts=FEW),
    row("integer amax", lambda x: x.amax(0), dtypes=INTEGERS, layouts=FEW),
    row("integer amin", lambda x: x.amin(-1), dtypes=INTEGERS, layouts=FEW),
    row("integer max.dim", lambda x: tuple(x.max(-1)), dtypes=INTEGERS, layouts=FEW),
    row("integer argmax", lambda x: x.argmax(-1), dtypes=INTEGERS, layouts=FEW),
    row("integer prod", lambda x: x.prod(-1), inputs=(real(1, 1),), dtypes=INTEGERS, layouts=FEW),
    row("integer cumsum", lambda x: x.cumsum(-1), dtypes=INTEGERS, layouts=FEW),
    row("integer any", lambda x: x.any(-1), dtypes=INTEGERS, layouts=FEW),
    row("bool sum", lambda x: x.sum(-1), inputs=(mask(),), dtypes=BOOL, layouts=FEW),
    row("bool any", lambda x: x.any(0), inputs=(mask(),), dtypes=BOOL, layouts=FEW),
    row("bool all", torch.all, inputs=(mask(),), dtypes=BOOL, layouts=FEW),
    row("bool amax", lambda x: x.amax(-1), inputs=(mask(),), dtypes=BOOL, layouts=FEW),
    row("bool cumsum", lambda x: x.cumsum(0), inputs=(mask(),), dtypes=BOOL, layouts=FEW),
    row("bool argmax", lambda x: x.int().argmax(-1), inputs=(mask(),), dtypes=BOOL, layouts=FEW),
    *scan("cumsum", torch.cumsum, lambda f, d: total(f, lambda x: x.shape[d])),
    *scan("cumprod", torch.cumprod, lambda f, d: lambda x: 2**-14 * f(x), inputs=(real(0.99, 1.01),)),
    *scan("cummax", lambda x, d: tuple(torch.cummax(x, d)), lambda f, d: exact),
    *scan("cummin", lambda x, d: tuple(torch.cummin(x, d)), lambda f, d: exact),
    *scan(
        "integer cummax",
        lambda x, d: tuple(torch.cummax(x, d)),
        lambda f, d: exact,
        dtypes=ALL_INTEGERS,
        layouts=FEW,
        inputs=(real(0, 9),),
    ),
    row("bool cummin", lambda x: tuple(x.cummin(-1)), inputs=(mask(),), dtypes=BOOL, layouts=FEW),
    row("special cummax", lambda x: tuple(x.cummax(-1)), inputs=(numbers(1.0, nan, 2.0, inf, nan, -inf, 0.0),)),
    *scan("logcumsumexp", torch.logcumsumexp, lambda f, d: lambda x: x.shape[d] * 2**-22 * (1 + f(x).abs())),
    row("narrow sum", lambda x: x.sum(-1), dtypes=NARROW, layouts=FEW, inputs=(real(0, 100),)),
    row("narrow sum kept", lambda x: x.sum(-1, dtype=x.dtype), dtypes=NARROW, layouts=FEW, inputs=(real(0, 100),)),
    row("narrow prod", lambda x: x.prod(0, dtype=x.dtype), dtypes=NARROW, layouts=FEW, inputs=(real(0, 9),)),
    row("narrow amax", lambda x: (x.amax(-1), x.argmin(0)), dtypes=NARROW, layouts=FEW, inputs=(real(0, 100),)),
    row("narrow cumsum", lambda x: x.cumsum(0, dtype=x.dtype), dtypes=NARROW, layouts=FEW, inputs=(real(0, 100),)),
    row("topk", lambda x: tuple(x.topk(min(3, x.shape[-1]))), inputs=(distinct,), layouts=LOSSLESS),
    row("topk 0", lambda x: tuple(x.topk(min(5, x.shape[0]), 0, False)), inputs=(distinct,), layouts=LOSSLESS),
    row("topk all", lambda x: x.topk(x.shape[-1]).values),
    row("var", lambda x: x.var(-1, correction=0), lambda x: 2**-18 * x.square().mean(-1)),
    row("var all", lambda x: x.var(correction=0), lambda x: 2**-16 * x.square().mean()),
    row("var 0", lambda x: x.var(0, unbiased=False, keepdim=True), lambda x: 2**-18 * x.square().mean(0, True)),
    row("std", lambda x: x.std(-1, correction=0), lambda x: 2**-9 * x.std(-1, correction=0) + 2**-18),
    row(
        "var_mean",
        lambda x: torch.var_mean(x, -1, correction=0),
        lambda x: (2**-18 * x.square().mean(-1), 2**-18 * x.abs().mean(-1)),
    ),
    row("softmax", lambda x: x.softmax(-1), shifted),
    row("softmax 0", lambda x: x.softmax(0), lambda x: shifted(x, 0)),
    row("softmax fp32", lambda x: x.softmax(-1, dtype=torch.float32), lambda x: 2**-18 * x.softmax(-1)),
    row("log_softmax", lambda x: x.log_softmax(-1), lambda x: 2**-19 * (8 + x.abs())),
    row("logsumexp", lambda x: x.logsumexp(-1), lambda x: 2**-7 + 2**-8 * x.logsumexp(-1).abs(), apart=True),
    row("layer_norm", lambda x: F.layer_norm(x, x.shape[-1:]), normal, roundings=2),
    row(
        "layer_norm affine",
        lambda x: F.layer_norm(x, x.shape[-1:], x.reshape(-1, x.shape[-1])[0], x.reshape(-1, x.shape[-1])[0]),
        normal,
        roundings=2,
    ),
    row("rms_norm", lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-5), normal, roundings=2, apart=True),
    row("norm", lambda x: x.norm(dim=-1), lambda x: 2**-9 * x.norm(dim=-1)),
    row("norm 1", lambda x: x.norm(p=1, dim=-1), lambda x: 2**-9 * x.norm(p=1, dim=-1)),
]


def test_eager(case: Case) -> None:
    check(case)


def test_compiled(cases: list[Case]) -> None:
    check_together(cases)
