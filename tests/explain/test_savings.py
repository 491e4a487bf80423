"""What explain promises is what happens: each kind of advice is followed, and the modelled time falls by so much."""

import re

import pytest
import torch

from torch_spyre import _C
from torch_spyre._inductor import config, spyre_hint
from torch_spyre.explain import Report


def halves(*size: int) -> torch.Tensor:
    return torch.randn(size).half().to("spyre")


def finding(report: Report, kind: str, key: str = "saving_us"):
    found = [each for each in report.data["findings"] if each["kind"] == kind and key in each]
    assert found, str(report)
    return found[0]


def assert_saved(before: Report, after: Report, kind: str) -> None:
    promised = finding(before, kind)["saving_us"]
    assert promised > 0
    assert before.microseconds - after.microseconds == pytest.approx(promised, rel=0.1)


def turned(x, weight):
    return torch.nn.functional.linear(x, weight)


def advised_layout(text: str) -> _C.SpyreTensorLayout:
    saying = re.search(r"device_layout=(SpyreTensorLayout\(.*\))\)", text)
    return eval(saying[1], {"SpyreTensorLayout": _C.SpyreTensorLayout, "torch": torch})


def test_a_layout():
    x, weight = halves(512, 1024), halves(2048, 1024)
    before = torch.spyre.explain(turned, x, weight)
    layout = advised_layout(finding(before, "layout")["advice"])
    assert_saved(before, torch.spyre.explain(turned, x, weight.cpu().to("spyre", device_layout=layout)), "layout")


def broken(x):
    y = (x * 2).exp()
    print("a graph break")
    return torch.softmax(y, -1)


def whole(x):
    y = (x * 2).exp()
    return torch.softmax(y, -1)


def test_a_graph_break(capsys):
    x = halves(512, 512)
    before = torch.spyre.explain(broken, x)
    assert capsys.readouterr().out.count("a graph break") == 2  # trials print nothing
    assert_saved(before, torch.spyre.explain(whole, x), "graph break")


@pytest.mark.slow
def test_a_graph_break_in_a_module():
    class Model(torch.nn.Module):
        def __init__(self, breaks):
            super().__init__()
            self.up, self.down, self.breaks = torch.nn.Linear(256, 512), torch.nn.Linear(512, 256), breaks

        def forward(self, x):
            y = torch.relu(self.up(x))
            if self.breaks:
                torch._dynamo.graph_break()
            return self.down(y)

    x = halves(256, 256)
    before = torch.spyre.explain(Model(True).half().to("spyre"), x)
    assert_saved(before, torch.spyre.explain(Model(False).half().to("spyre"), x), "graph break")


@pytest.mark.slow
def test_a_graph_break_around_a_backward_pass_promises_nothing():
    """That is no part of a graph without the break either."""
    weight = torch.nn.Parameter(halves(256, 256))

    def step(x):
        (x @ weight).square().mean().backward()
        print("done")

    report = torch.spyre.explain(step, halves(256, 256))
    breaks = [each for each in report.data["findings"] if each["kind"] == "graph break"]
    assert breaks and all("saving_us" not in each for each in breaks)


def test_eager_ops():
    x = halves(512, 512)
    before = torch.spyre.explain(whole, x, compile=False)
    assert_saved(before, torch.spyre.explain(whole, x), "eager")


def test_a_fallback():
    def program(x):
        return torch.linalg.svd(x * 3)[1] * 2

    x = torch.randn(96, 96).to("spyre")
    before = torch.spyre.explain(program, x)
    singular = torch.linalg.svd(x * 3)[1]
    after = torch.spyre.explain(lambda x, singular: (x * 3, singular * 2), x, singular)
    assert_saved(before, after, "fallback")
    (row,) = before.data["eager"]
    assert row["us"] == pytest.approx(before.data["totals"]["other_us"], rel=1e-3)  # both ways


def test_padding_of_a_size():
    before = torch.spyre.explain(whole, halves(2048, 65))
    assert "with 64 in its place" in finding(before, "padding")["advice"]
    assert_saved(before, torch.spyre.explain(whole, halves(2048, 64)), "padding")


@pytest.mark.slow
def test_padding_of_the_weights_of_a_module():
    def model(width):
        return torch.nn.Sequential(torch.nn.Linear(256, width), torch.nn.GELU(), torch.nn.Linear(width, 256))

    x = halves(1024, 256)
    before = torch.spyre.explain(model(193).half().to("spyre"), x)
    assert_saved(before, torch.spyre.explain(model(192).half().to("spyre"), x), "padding")


@pytest.mark.slow
def test_padding_of_a_layout():
    x = halves(16384, 4)
    before = torch.spyre.explain(lambda x: x.sum(0), x)
    layout = advised_layout(finding(before, "padding")["advice"])
    after = torch.spyre.explain(lambda x: x.sum(0), x.cpu().to("spyre", device_layout=layout))
    assert_saved(before, after, "padding")


def divided(x, weight, cores):
    with spyre_hint(named_dims=["M", "N", "K"], work_div=cores):
        return x @ weight


def test_cores_that_a_hint_leaves_idle():
    x, weight = halves(512, 512), halves(512, 2048)
    before = torch.spyre.explain(divided, x, weight, {"M": 2})
    assert_saved(before, torch.spyre.explain(torch.matmul, x, weight), "few cores")


@pytest.mark.slow
def test_cores_that_a_setting_leaves_idle():
    x, weight = halves(512, 512), halves(512, 2048)
    with config.patch(sencores=4):
        before = torch.spyre.explain(torch.matmul, x, weight)
        assert "(SENCORES)" in finding(before, "few cores")["text"]
    assert_saved(before, torch.spyre.explain(torch.matmul, x, weight), "few cores")


def test_an_op_that_does_not_divide_says_so():
    report = torch.spyre.explain(lambda x: x.cumsum(-1), halves(8, 4096))
    (said,) = [each["text"] for each in report.data["findings"] if each["kind"] == "few cores"]
    assert "it does not divide over more, in whole sticks" in said or "none of which makes the kernel faster" in said


def test_a_value_that_is_not_in_lx():
    def program(x):
        return torch.softmax(x * 2, -1) * 3

    x = halves(512, 512)
    with config.patch(lx_planning=False):
        before = torch.spyre.explain(program, x)
    after = torch.spyre.explain(program, x)
    promised = sum(each["us"] for each in before.data["findings"] if each["kind"] == "not in LX")
    assert before.microseconds - after.microseconds == pytest.approx(promised, rel=0.1)


@pytest.mark.slow
def test_recompiles():
    given = [halves(8 * n, 64) for n in (1, 2, 3)]

    def inner(x):
        return torch.softmax(x, -1)

    def explained(called):
        return torch.spyre.explain(lambda: [called(each) for each in given], compile=False)

    torch._dynamo.reset()
    before = explained(torch.compile(inner))
    promised = finding(before, "recompile", "saving_compiles")
    torch._dynamo.reset()
    after = explained(torch.compile(inner, dynamic=True))
    kinds = [[each["kind"] for each in report.data["findings"]].count("recompile") for report in (before, after)]
    assert promised["saving_compiles"] == kinds[0] - kinds[1] == 1
    assert before.microseconds - after.microseconds == pytest.approx(promised.get("saving_us", 0.0), abs=0.1)


def test_without_trials_the_program_is_called_twice():
    calls = []

    def program(x):
        calls.append(1)
        print("a graph break")
        return x * 2

    report = torch.spyre.explain(program, halves(8, 64), trials=False)
    assert len(calls) == 2 and all("saving_us" not in each for each in report.data["findings"])


@pytest.mark.slow
def test_a_layout_that_two_kernels_share():
    """Both are planned anew: what one of them gains, the other may lose."""
    weight = torch.nn.Parameter(halves(1024, 512))

    def step(x):
        first = torch.nn.functional.linear(x, weight)
        torch._dynamo.graph_break()
        return first @ weight

    x = halves(512, 512)
    before = torch.spyre.explain(step, x, trials=False)
    advised = [each for each in before.data["findings"] if "device_layout" in each.get("advice", "")]
    assert len(advised) == 1
    weight.data = weight.data.cpu().to("spyre", device_layout=advised_layout(advised[0]["advice"]))
    after = torch.spyre.explain(step, x, trials=False)
    assert before.microseconds - after.microseconds == pytest.approx(advised[0]["saving_us"], rel=0.1)


@pytest.mark.slow
def test_a_value_between_kernels_has_no_layout_to_advise():
    def step(x, weight):
        first = torch.nn.functional.linear(x, weight)
        torch._dynamo.graph_break()
        return torch.nn.functional.linear(x, first)

    report = torch.spyre.explain(step, halves(1024, 1024), halves(1024, 1024), trials=False)
    inputs = [each["text"] for each in report.data["findings"] if "device_layout" in each.get("advice", "")]
    assert len(inputs) <= 1, inputs
