"""``torch.spyre.compare`` finds what is wrong, at its line, and finds nothing where nothing is."""

import inspect
import json
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from torch_spyre import compiler

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


def total(x):
    doubled = x * 2
    return doubled.sum(-1)


def test_a_sum_that_skips_the_last_element_is_found(planted):
    def short_sum(builder, x, dim=None, keepdim=False, *, dtype=None):
        return builder.total("sum", x.narrow(1, 0, x.size[1] - 1), [1], keepdim, x.dtype)

    with planted(aten.sum.dim_IntList, short_sum):
        report = torch.spyre.compare(total, torch.randn(5, 70).to("spyre"))
    assert report.first.line.number == line_of(total, ".sum(-1)")


def test_a_fused_program_that_differs_from_its_ops_is_a_finding():
    """A planted bug in a pass, which spoils only kernels of several ops."""

    def spoil(plan):
        ops = plan.kernel.ops
        if len(ops) > 1:
            ops[-1] = replace(ops[-1], name="sub" if ops[-1].name == "add" else ops[-1].name)

    compiler.register_pass(before="dead_code")(spoil)
    try:
        compiled = torch.compile(lambda x: x * 2 + x)
        report = torch.spyre.compare(compiled, torch.randn(4, 64).to("spyre"))
    finally:
        compiler.unregister(spoil)
    assert "the fused program differs from its ops in 256 of 256 elements" in report.first.note
    assert [row.op for row in report.findings] == [report.first.where]


def test_training_names_the_line_whose_gradient_is_wrong(planted):
    def flat_backward(builder, gradient, output):
        return builder.copy(gradient)

    weight = torch.randn(32, 32, requires_grad=True, device="spyre")

    def step(x):
        hidden = torch.tanh(x @ weight)
        loss = hidden.square().mean()
        loss.backward()

    with planted(aten.tanh_backward, flat_backward):
        report = torch.spyre.compare(step, torch.randn(8, 32).to("spyre"))
    assert report.first.op == "aten.tanh_backward"
    assert report.first.line.backward and report.first.line.number == line_of(step, "torch.tanh")
    assert weight.grad is not None  # the step was made


@pytest.mark.parametrize("compiled", [False, True])
def test_a_training_step_is_right(compiled):
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 4)
    model = torch.nn.Sequential(*layers).to("spyre")
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, *, target):
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), target)
        loss.backward()
        optimizer.step()
        return loss

    x, target = torch.randn(8, 16).to("spyre"), torch.randint(4, (8,)).to("spyre")
    report = torch.spyre.compare(step, x, target=target)
    assert report.ok, str(report)
    assert {"unchecked"}.isdisjoint(row.verdict for row in report.rows), str(report)
    assert any(row.line.backward for row in report.rows)
    assert report.outputs[0].relative < 2**-18


def test_both_sides_draw_the_same_numbers():
    def draw(x):
        noise = torch.randn(8, 64, device="spyre") + torch.rand_like(x)
        return F.dropout(x, 0.5) + noise.bernoulli_(0.3)

    torch.manual_seed(3)
    x = torch.ones(8, 64, device="spyre")
    report = torch.spyre.compare(draw, x)
    assert report.ok, str(report)
    torch.manual_seed(3)
    assert torch.equal(report.result, draw(x))  # and those that a run without comparison draws


def test_views_changes_in_place_and_integers():
    def change(x, positions):
        x[:, 1:].t().mul_(2)
        x.index_fill_(0, positions, -1.0)
        largest = x.argmax(-1) + positions.sum()
        if largest[0] > 0:  # the card's numbers decide
            x += 1
        return {"values": x.sort(-1).values, "positions": largest}

    x = torch.randn(4, 9).half().to("spyre")
    report = torch.spyre.compare(change, x, torch.tensor([1, 3]).to("spyre"))
    assert report.ok and set(report.result) == {"values", "positions"}, str(report)
    assert {"int64", "float16", "bool"} <= {row.dtype for row in report.rows}
    assert report.outputs[0].relative < 2**-8


def test_a_module_on_the_cpu_is_compared_on_the_card():
    module = torch.nn.Linear(8, 4)
    report = torch.spyre.compare(module, torch.randn(3, 8))
    assert [row.op for row in report.rows] == ["aten.addmm"]
    assert report.result.device.type == "spyre"
    assert module.weight.device.type == "cpu"  # a copy went there
    assert report.first is None


def test_ops_that_fall_back_are_marked():
    def values(x):
        return torch.linalg.svdvals(x) + 1

    report = torch.spyre.compare(values, torch.randn(4, 4).to("spyre"))
    assert report.ok, str(report)
    assert [row.where for row in report.rows] == ["cpu", "card"]
    assert "1 ran on the CPU" in str(report)


def test_a_number_beyond_the_range_is_no_rounding():
    def square(x):
        return x * x

    report = torch.spyre.compare(square, torch.full((2, 3), 3e5, dtype=torch.bfloat16).to("spyre"))
    assert report.first.verdict == "range"
    assert "the largest number of bfloat16 on the card is 8.57e+09" in report.first.note


def test_the_report_as_text_json_and_html(planted):
    with planted(aten.gelu, rough_gelu):
        report = torch.spyre.compare(mlp, *mlp_inputs())
    text = str(report)
    assert "4 ops compared, 1 beyond what their roundings explain" in text
    assert f"First: {__file__}:{line_of(mlp, 'F.gelu')}: aten.gelu float16[16, 128]" in text
    assert 'active = F.gelu(hidden, approximate="tanh")' in text
    found = json.loads(json.dumps(report.to_json()))
    assert not found["ok"] and found["first"]["op"] == "aten.gelu" and len(found["rows"]) == 4
    assert {"file", "line", "op", "dtype", "shape", "max_abs_error", "units", "verdict"} <= set(found["rows"][0])
    assert report._repr_html_().count("<tr") == 5


def test_what_it_does_not_take():
    with pytest.raises(TypeError, match="takes something to call and its arguments, got a int"):
        torch.spyre.compare(3)
    with pytest.raises(ZeroDivisionError):  # errors of the program stay its own
        torch.spyre.compare(lambda x: 1 / 0, torch.ones(3, device="spyre"))
    assert torch.ones(3, device="spyre").sum().item() == 3


def test_ops_that_compiled_code_runs_eagerly_have_their_lines():
    def drop(x):
        doubled = x * 2
        first = F.dropout(doubled, 0.5)
        return F.dropout(first, 0.25)

    report = torch.spyre.compare(torch.compile(drop), torch.ones(4, 64, device="spyre"))
    assert report.ok, str(report)
    lines = [row.line.number for row in report.rows if row.op == "aten.native_dropout"]
    assert lines == [line_of(drop, "0.5"), line_of(drop, "0.25")]


def test_a_mask_of_infinities_hides_nothing(planted):
    def masked(scores):
        hidden = scores.masked_fill(torch.ones(6, 6, dtype=torch.bool, device="spyre").triu(1), -torch.inf)
        return hidden.softmax(-1)

    def sharp_softmax(builder, x, dim, half_to_float):
        powers = builder.pointwise("exp", builder.pointwise("mul", x, 1.25, dtype=x.dtype), dtype=x.dtype)
        total = builder.total("sum", powers, [1], True, x.dtype)
        return builder.pointwise("div", powers, total.expand(x.size), dtype=x.dtype)

    scores = torch.randn(6, 6).to("spyre")
    assert torch.spyre.compare(masked, scores).ok
    with planted(aten._softmax, sharp_softmax):
        report = torch.spyre.compare(masked, scores)
    assert report.first.op == "aten._softmax" and report.first.line.number == line_of(masked, "softmax")
