"""The trace analyzer of the real card takes our traces, and finds the utilisation that they say."""

import csv
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.profiler import profile

from tests.profiler.traces import BOTH, halves
from torch_spyre.profiler import export_ideal_cycles
from torch_spyre.profiler.trace import device_rows


def acelyzer(*arguments: str, within: Path) -> subprocess.CompletedProcess:
    run = "import sys; from acelyzer.acelyzer import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", run, *arguments], cwd=within, capture_output=True, text=True, timeout=120
    )


def warnings_of(done: subprocess.CompletedProcess) -> list[str]:
    lines = (done.stdout + done.stderr).splitlines()
    return [line for line in lines if "WARN" in line or "ERROR" in line]


def utilisation(trace: Path) -> dict[str, float]:
    """By op, as the rows of a trace say."""
    ideal: dict[str, float] = defaultdict(float)
    spent: dict[str, float] = defaultdict(float)
    for row in device_rows(trace):
        if row.category == "kernel":
            for key in (row.args["op"], "Total"):
                ideal[key] += row.args["pt_util"] * row.duration
                spent[key] += row.duration
    return {key: ideal[key] / spent[key] for key in spent}


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    function = torch.compile(lambda x: torch.softmax(x @ x, -1) @ x)
    x = halves(512, 512)
    function(x), x @ x
    with profile(activities=BOTH) as prof:
        for _ in range(3):
            (function(x) @ x).cpu()
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    prof.export_chrome_trace(str(path))
    return path


def check_utilisation(trace: Path) -> dict[str, float]:
    """What the analyzer finds is what the trace says, and it warns of nothing but the names of kernels."""
    export_ideal_cycles(trace, trace.parent / "cycles")
    done = acelyzer("-i", trace.name, "-o", "out.json", "-c", "cycles", within=trace.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all("uncertain Ideal Cycles table match" in line for line in warnings_of(done)), done.stdout
    with (trace.parent / "out_categories.csv").open() as file:
        found = {row["Category"]: float(row["PT_Util"]) for row in csv.DictReader(file) if int(row["Calls"])}
    ours = utilisation(trace)
    assert found == pytest.approx(ours, abs=2e-4)
    return ours


def test_it_finds_the_utilisation_that_the_trace_says(trace):
    assert check_utilisation(trace)["matmul"] > 0.1


def test_its_checks_find_no_overlap(trace):
    done = acelyzer("-V", "-i", "trace.json", "-o", "report.json", within=trace.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Overlapping" not in (trace.parent / "report.json").read_text()


def training_step() -> Callable[[], object]:
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.LayerNorm(256), torch.nn.Linear(256, 64))
    model = model.half().to("spyre")
    optimizer = torch.optim.AdamW(model.parameters())
    x = halves(64, 128)

    def step() -> None:
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def tile_loop() -> Callable[[], object]:
    function = torch.compile(lambda x, w: torch.nn.functional.gelu(x @ w) * 2 + 1)
    x, w = halves(8192, 256), halves(256, 8192)  # products of 128 MiB, twice all of LX
    return lambda: function(x, w)


def two_streams() -> Callable[[], object]:
    x, streams = halves(256, 256), [torch.spyre.Stream() for _ in range(2)]

    def step() -> None:
        for stream in streams * 3:
            with stream:
                (x @ x).cpu()

    return step


@pytest.mark.parametrize("program", [training_step, tile_loop, two_streams], ids=lambda program: program.__name__)
def test_traces_of_other_programs_are_clean_too(program, tmp_path):
    step = program()
    step()
    with profile(activities=BOTH) as prof:
        step()
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    check_utilisation(tmp_path / "trace.json")
    done = acelyzer("-V", "-i", "trace.json", "-o", "report.json", within=tmp_path)
    assert done.returncode == 0 and "Overlapping" not in (tmp_path / "report.json").read_text()
