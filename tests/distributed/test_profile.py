"""Collectives in profiles: rows of a lane of their group."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import programs
from .ranks import Ranks

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from torch_spyre.distributed import lone_world

with lone_world(4):
    x = torch.zeros(512, 512, dtype=torch.float16, device="spyre")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as found:
        dist.all_reduce(x)
        work = dist.broadcast(x, 2, async_op=True)
        y = x + x
        work.wait()
    found.export_chrome_trace(sys.argv[1])
"""


@pytest.mark.slow
def test_rows_of_collectives(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    environment = os.environ | {"SPYRE_CARD": "timing"}
    subprocess.run([sys.executable, "-c", PROGRAM, str(trace)], env=environment, check=True, capture_output=True)
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") == "kernel"]
    first, second = sorted((e for e in events if "coll_group" in e["args"]), key=lambda event: event["ts"])
    computed = next(event for event in events if "coll_group" not in event["args"])
    assert [first["name"], second["name"]] == ["spyreccl_all_reduce", "spyreccl_broadcast"]
    assert first["args"]["coll_algo"] == "reduce_scatter_all_gather"
    assert first["args"]["coll_bytes"] == second["args"]["coll_bytes"] == 512 * 1024
    assert first["args"]["stream"] == second["args"]["stream"] != computed["args"]["stream"]
    assert first["ts"] + first["dur"] <= second["ts"]
    from torch_spyre.distributed import collective_times

    assert first["args"]["modelled_ns"] == pytest.approx(
        1000 * collective_times("all_reduce", 512 * 1024, 4)["reduce_scatter_all_gather"], abs=1
    )
    assert first["args"]["waited_ns"] == 0


def test_rows_of_messages(two: Ranks) -> None:
    sent, received = two.run(programs.rows_of_messages)
    for rows, name in ((sent, "spyreccl_send"), (received, "spyreccl_recv")):
        assert [row["name"] for row in rows] == [name] * 2
        assert {row["args"]["coll_bytes"] for row in rows} == {1 << 20}
        assert {row["args"]["coll_algo"] for row in rows} == {"direct"}
    assert sent[0]["args"]["modelled_ns"] == sent[1]["args"]["modelled_ns"] > 0
    assert received[1]["args"]["waited_ns"] == received[1]["args"]["modelled_ns"]
