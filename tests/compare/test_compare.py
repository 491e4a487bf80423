"""``torch.spyre.compare`` finds what is wrong, at its line, and finds nothing where nothing is."""

import inspect

import pytest
import torch
from torch.nn import functional as F

aten = torch.ops.aten


def rough_gelu(builder, x, approximate="none"):
    """A planted bug: the constant of the approximation with one digit changed."""
    third = builder.pointwise("mul", x, builder.pointwise("mul", x, x, dtype=x.dtype), dtype=x.dtype)
    inner = builder.pointwise("add", x, builder.pointwise("mul", third, 0.064715, dtype=x.dtype), dtype=x.dtype)
    swing = builder.pointwise("tanh", builder.pointwise("mul", inner, 0.7978845608, dtype=x.dtype), dtype=x.dtype)
    half = builder.pointwise("mul", x, 0.5, dtype=x.dtype)
    return builder.pointwise("add", half, builder.pointwise("mul", half, swing, dtype=x.dtype), dtype=x.dtype)


def mlp(x, first, second):
    hidden = x @ first
    active = F.gelu(hidden, approximate="tanh")
    return (active @ second).softmax(-1)


def mlp_inputs(dtype=torch.float16):
    torch.manual_seed(0)
    shapes = (16, 64), (64, 128), (128, 64)
    return [(torch.randn(shape) / 4).to(dtype).to("spyre") for shape in shapes]


def line_of(function, text):
    """The line of a function that has this text."""
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_bug_in_a_lowering_is_found_at_its_line(planted, compiled):
    with planted(aten.gelu, rough_gelu):
        report = torch.spyre.compare(torch.compile(mlp) if compiled else mlp, *mlp_inputs())
    assert not report.ok
    assert report.first.op == "aten.gelu"
    assert report.first.verdict == "beyond" and report.first.units > 1
    assert report.first.line.file == __file__
    assert report.first.line.number == line_of(mlp, "F.gelu")
    assert [row.op for row in report.findings] == ["aten.gelu"]  # what follows is right, given what it got


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_nothing_is_found_where_nothing_is_wrong(compiled, dtype):
    report = torch.spyre.compare(torch.compile(mlp) if compiled else mlp, *mlp_inputs(dtype))
    assert report.ok and report.first is None, str(report)
    assert [row.op for row in report.rows] == ["aten.mm", "aten.gelu", "aten.mm", "aten._softmax"]
    assert {row.verdict for row in report.rows} == {"ok"}
    torch.testing.assert_close(report.result, mlp(*mlp_inputs(dtype)))
