"""Bugs of many kinds, each planted in one lowering: compare names the line of the op that has it."""

import inspect
from dataclasses import replace

import pytest
import torch

aten = torch.ops.aten


def given(*size: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(size).to(dtype).to("spyre")


def program(x, weight):
    doubled = x * 2
    turned = doubled.t()
    cut = turned[1:33]
    total = cut @ weight
    summed = total.sum(0)
    return torch.exp(summed / 16) + 1


def unturned(builder, x):
    return x


def far(builder, x, dim=0, start=None, end=None, step=1):
    """Begins one element too late, where there is one more."""
    first, last = start or 0, min(end, x.size[dim])
    size = tuple(last - first if i == dim else n for i, n in enumerate(x.size))
    return replace(x, size=size, offset=x.offset + (first + 1) * x.stride[dim])


def other_dim(builder, x, dim=None, keepdim=False, *, dtype=None):
    return builder.total("sum", x, [1], keepdim, x.dtype)


def rough_exp(builder, x):
    """Through a format with fewer bits."""
    return builder.cast(builder.pointwise("exp", builder.cast(x, torch.float16), dtype=torch.float16), x.dtype)


def transposed(builder, a, b):
    return builder.matmul(a, b.permute([1, 0]), a.dtype)


def no_constant(builder, a, b, alpha=1):
    return builder.copy(a)


KINDS = [
    pytest.param(aten.t.default, unturned, "doubled.t()", id="a view with the strides of its source"),
    pytest.param(aten.slice.Tensor, far, "turned[1:33]", id="a slice that is off by one"),
    pytest.param(aten.sum.dim_IntList, other_dim, "total.sum(0)", id="a sum over another dimension"),
    pytest.param(aten.exp.default, rough_exp, "torch.exp(", id="an op that rounds to fewer bits"),
    pytest.param(aten.mm.default, transposed, "cut @ weight", id="a product with a turned operand"),
    pytest.param(aten.add.Tensor, no_constant, "torch.exp(summed / 16) + 1", id="a sum without its second term"),
]


@pytest.mark.parametrize(("op", "lowering", "text"), KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_bug_of_this_kind_is_found_at_its_line(planted, op, lowering, text, dtype):
    if lowering is rough_exp and dtype == torch.float16:
        pytest.skip("float16 has no more bits than float16")
    x, weight = given(64, 64, dtype=dtype), given(64, 64, dtype=dtype)
    with planted(op, lowering):
        report = torch.spyre.compare(torch.compile(program), x, weight)
    lines, start = inspect.getsourcelines(program)
    expected = start + next(i for i, line in enumerate(lines) if text in line)
    assert report.first is not None, str(report)
    assert report.first.line.number == expected, str(report)


def test_without_a_bug_nothing_is_found():
    report = torch.spyre.compare(torch.compile(program), given(64, 64), given(64, 64))
    assert report.ok, str(report)
