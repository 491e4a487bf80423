"""torch.spyre.explain: what the backend did that the program does not say."""

import json

import pytest
import torch

from torch_spyre import _C
from torch_spyre.explain import Report


def halves(*size: int) -> torch.Tensor:
    return torch.randn(size).half().to("spyre")


def kinds(report: Report) -> dict[str, int]:
    found = [each["kind"] for each in report.data["findings"]]
    return {kind: found.count(kind) for kind in found}


def mlp(x, gate, up, down):
    return (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down


def explained_mlp() -> Report:
    return torch.spyre.explain(mlp, halves(64, 256), halves(256, 512), halves(256, 512), halves(512, 256))


def test_totals_are_those_of_the_clock():
    compiled, args = torch.compile(mlp), [halves(64, 256), halves(256, 512), halves(256, 512), halves(512, 256)]
    compiled(*args)
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    start.record()
    compiled(*args)
    end.record()
    torch.spyre.synchronize()
    report = torch.spyre.explain(mlp, *args)
    assert report.microseconds == pytest.approx(start.elapsed_time(end) * 1000, abs=1e-3)
    steps = [step for kernel in report.data["kernels"] for step in kernel["steps"]]
    assert sum(step["us"] for step in steps) == pytest.approx(report.data["totals"]["launched_us"])


def test_every_step_has_its_line():
    report = explained_mlp()
    for step in report.data["kernels"][0]["steps"]:
        assert report.line(step["source"]).startswith("test_explain.py:")
        assert "silu(x @ gate)" in report.line(step["source"])


def test_a_graph_break_is_told_with_its_line():
    def program(x):
        y = x * 2
        print("here")
        return y + 1

    report = torch.spyre.explain(program, halves(8, 64))
    (found,) = [each for each in report.data["findings"] if each["kind"] == "graph break"]
    assert 'print("here")' in report.line(found["source"])
    assert len(report.data["launches"]) == 2


def test_a_fallback_is_told_with_its_reason():
    report = torch.spyre.explain(lambda x: torch.linalg.svd(x)[1] * 2, torch.randn(8, 8).to("spyre"))
    (found,) = [each for each in report.data["findings"] if each["kind"] == "fallback"]
    assert "_linalg_svd" in found["text"] and "no lowering" in found["text"]
    assert found["us"] > 0


def test_a_recompile_is_told_with_its_reason():
    sizes = iter([4, 8])

    inner = torch.compile(lambda x: x * 2)
    report = torch.spyre.explain(lambda: inner(halves(next(sizes), 64)), compile=False)
    (found,) = [each for each in report.data["findings"] if each["kind"] == "recompile"]
    assert "size" in found["text"]


def test_eager_ops_have_their_lines():
    def program(x):
        y = torch.relu(x)
        return y + 1

    report = torch.spyre.explain(program, halves(64, 64), compile=False)
    lines = {row["aten"]: report.line(row["source"]) for row in report.data["eager"]}
    assert "torch.relu(x)" in lines["aten.relu.default"] and "y + 1" in lines["aten.add.Tensor"]


def test_a_training_step_is_explained():
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)).to("spyre")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled, x = torch.compile(model), torch.randn(16, 64).to("spyre")

    def step():
        optimizer.zero_grad()
        compiled(x).square().mean().backward()
        optimizer.step()

    report = torch.spyre.explain(step, compile=False)
    atens = {step["aten"] for kernel in report.data["kernels"] for step in kernel["steps"]}
    assert report.ok and len(report.data["launches"]) == 2  # forward and backward
    assert any("gelu_backward" in aten for aten in atens)


def test_what_fails_is_told_with_what_was_learned():
    def program(x):
        y = torch.softmax(x, -1)
        print("a break")
        raise ValueError(f"too large: {y.shape}")

    report = torch.spyre.explain(program, halves(8, 64))
    assert not report.ok
    assert report.data["failure"].startswith("ValueError: too large")
    assert report.data["launches"]


def test_a_buffer_that_is_not_in_lx_says_why_and_what_it_costs():
    def program(x, index):
        y = torch.softmax(x, -1)
        return y[index]

    report = torch.spyre.explain(program, halves(512, 512), torch.arange(100).to("spyre"))
    (buffer,) = [each for each in report.data["kernels"][0]["buffers"] if each["place"] == "pool"]
    assert buffer["why_not"].startswith("it is read by index (gather")
    assert buffer["saving_us"] > 0


def test_a_report_is_text_json_and_html():
    report = explained_mlp()
    assert json.loads(report.to_json())["format"] == "spyre-run"
    assert "matmul" in str(report) and "bound by" in str(report)
    shown = report._repr_html_()
    assert "<td" in shown and "matmul" in shown and shown.count("<tr>") == shown.count("</tr>") > 5


def test_explaining_changes_no_result():
    x = halves(64, 64)
    compiled = torch.compile(lambda x: torch.softmax(x, -1) @ x)
    before = compiled(x).cpu()
    torch.spyre.explain(compiled, x)
    assert torch.equal(compiled(x).cpu(), before)


def test_nothing_is_listened_to_afterwards():
    explained_mlp()
    assert _C.launch_listeners == []


def out_of_memory(x):
    y = x * 2
    return y + torch.empty(1 << 40, dtype=torch.float16, device="spyre").sum()


def of_python(x):
    y = torch.softmax(x, -1)
    torch._dynamo.graph_break()
    return y[{}["no such key"]]


def of_shapes(x):
    y = x * 2
    return y @ torch.ones(3, 3, dtype=torch.float16, device="spyre")


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize(
    ("program", "text"), [(out_of_memory, "1 << 40"), (of_python, "no such key"), (of_shapes, "y @ torch.ones")]
)
def test_what_fails_is_told_with_its_line(program, text, compile):
    report = torch.spyre.explain(program, halves(8, 64), compile=compile)
    assert not report.ok and report.data["failure"]
    assert text in report.line(report.data["failure_source"]), report.data["failure"]
    assert "failed: " in str(report) and "failed: " in report._repr_html_()


def test_in_a_terminal_text_is_as_it_is():
    """Lines of a program may look like markup."""
    rich = pytest.importorskip("rich.console")
    from torch_spyre.explain.rich_text import show
    from torch_spyre.explain.sections import sections_of

    report = explained_mlp()
    report.data["title"] = "[bold]x[/bold]"
    console = rich.Console(width=150, force_terminal=True, record=True)
    show(sections_of(report.data, 12, report.line), console)
    shown = console.export_text()
    assert "[bold]x[/bold]" in shown and "matmul" in shown


def test_launches_and_eager_ops_lie_on_one_clock():
    def program(x):
        y = torch.softmax(x, -1)
        torch._dynamo.graph_break()
        return torch.linalg.svd(y.float())[1]

    data = torch.spyre.explain(program, halves(32, 32), trials=False).data
    rows = sorted((each["start_us"], each["us"]) for each in (*data["launches"], *data["eager_calls"]))
    assert len(rows) >= 2
    for (start, us), (following, _) in zip(rows, [*rows[1:], (data["totals"]["us"], 0.0)], strict=True):
        assert start + us <= following + 1e-6
