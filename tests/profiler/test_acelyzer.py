"""The trace analyzer of the real card takes our traces, and finds the utilisation that they say."""

import csv
import subprocess
import sys
from collections import defaultdict
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


def test_it_finds_the_utilisation_that_the_trace_says(trace):
    export_ideal_cycles(trace, trace.parent / "cycles")
    done = acelyzer("-i", "trace.json", "-o", "out.json", "-c", "cycles", within=trace.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all("uncertain Ideal Cycles table match" in line for line in warnings_of(done)), done.stdout
    with (trace.parent / "out_categories.csv").open() as file:
        found = {row["Category"]: float(row["PT_Util"]) for row in csv.DictReader(file) if int(row["Calls"])}
    ours = utilisation(trace)
    assert found == pytest.approx(ours, abs=2e-4) and ours["matmul"] > 0.1


def test_its_checks_find_no_overlap(trace):
    done = acelyzer("-V", "-i", "trace.json", "-o", "report.json", within=trace.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Overlapping" not in (trace.parent / "report.json").read_text()
