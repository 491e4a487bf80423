"""A compiled block of a Llama in timing mode, at its real size: every row has a line, and all of them add up."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.profiler.test_acelyzer import acelyzer, check_utilisation
from tests.profiler.traces import check_lanes, modelled_ms, of

pytestmark = pytest.mark.slow

PROGRAM = """
    import torch
    from torch.profiler import ProfilerActivity, profile
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaModel

    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8,
        num_hidden_layers=1, vocab_size=1024,
    )
    with torch.device("meta"):
        model = LlamaModel(config).half()
    model.to_empty(device="spyre").eval()
    ids = torch.zeros(1, 128, dtype=torch.int32, device="spyre")
    run = torch.compile(lambda ids: model(ids, use_cache=False).last_hidden_state)
    with torch.no_grad():
        run(ids)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof:
            start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
            start.record()
            run(ids)
            end.record()
    prof.export_chrome_trace("trace.json")
    print(start.elapsed_time(end))
"""


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    """The directory of the trace, its rows, and the milliseconds between events around the block."""
    directory = tmp_path_factory.mktemp("llama")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        cwd=directory,
        env={**os.environ, "SPYRE_CARD": "timing"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((directory / "trace.json").read_text())["traceEvents"]
    return directory, [row for row in rows if row["ph"] == "X"], float(done.stdout.split()[-1])


def test_every_kernel_has_a_line(block):
    kernels = of(block[1], "kernel")
    assert len(kernels) > 10
    for row in kernels:
        file, _, line = row["args"]["source"].rpartition(":")
        assert Path(file).suffix == ".py" and int(line) > 0, row


def test_rows_add_up_to_the_time_between_events(block):
    assert modelled_ms(block[1]) == pytest.approx(block[2], rel=1e-6)


def test_no_rows_overlap(block):
    check_lanes(block[1])


def test_the_analyzer_agrees(block):
    trace = block[0] / "trace.json"
    assert check_utilisation(trace)["matmul"] > 0.1
    done = acelyzer("-V", "-i", "trace.json", "-o", "report.json", within=block[0])
    assert done.returncode == 0 and "Overlapping" not in (block[0] / "report.json").read_text()
