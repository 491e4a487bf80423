"""The trace on the modelled clock alone, with its counters and the lanes of cores."""

import gzip
import json
from collections import defaultdict

import pytest
import torch
from torch.profiler import profile

import torch_spyre
from tests.profiler.traces import BOTH, event, halves
from torch_spyre.profiler import export_modelled_trace


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """The trace of two launches, and the modelled milliseconds that they take."""
    function = torch.compile(lambda x: torch.softmax(x @ x, -1))
    x = halves(256, 256)
    function(x)
    with profile(activities=BOTH) as prof:
        start = event()
        x + function(x)
        end = event()
    path = tmp_path_factory.mktemp("profiled") / "trace.json"
    prof.export_chrome_trace(str(path))
    return path, start.elapsed_time(end)


def exported(trace, path, **options):
    export_modelled_trace(trace, path, **options)
    return json.loads(path.read_text())["traceEvents"]


def test_rows_follow_each_other_without_gaps(profiled, tmp_path):
    rows = sorted((e for e in exported(profiled[0], tmp_path / "m.json") if e["ph"] == "X"), key=lambda e: e["ts"])
    assert len(rows) > 3
    for before, after in zip(rows, rows[1:], strict=False):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=2e-6)
    span = rows[-1]["ts"] + rows[-1]["dur"] - rows[0]["ts"]
    assert span / 1000 == pytest.approx(profiled[1], rel=1e-6)


def test_a_compressed_trace_gives_the_same(profiled, tmp_path):
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(profiled[0].read_bytes()))
    expected = exported(profiled[0], tmp_path / "a.json")
    assert exported(str(tmp_path / "trace.json.gz"), tmp_path / "b.json") == expected


def test_counters_show_the_units(profiled, tmp_path):
    counters = defaultdict(list)
    for e in exported(profiled[0], tmp_path / "m.json", units=True):
        if e["ph"] == "C":
            counters[e["name"]].append(e["args"]["value"])
    assert set(counters) == {
        "matrix unit (%)",
        "vector unit (%)",
        "DRAM (GB/s)",
        "ring (GB/s)",
        "LX (bytes per core)",
    }
    assert all(values[-1] == 0 for values in counters.values())  # behind the last row
    assert 0 < max(counters["matrix unit (%)"]) <= 100 and 0 < max(counters["vector unit (%)"]) <= 100
    assert 0 < max(counters["DRAM (GB/s)"]) < 204.8
    assert 0 < max(counters["LX (bytes per core)"]) <= 2 * 2**20


def test_cores_have_lanes(profiled, tmp_path):
    rows = [e for e in exported(profiled[0], tmp_path / "m.json", cores=True) if e.get("cat") == "core"]
    assert {row["tid"] for row in rows} == set(range(32))


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, '{"traceEvents": [3]}', '{"traceEvents": [{"cat": "kernel"}]}']
)
def test_what_is_no_trace_is_refused(text, tmp_path):
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(ValueError, match="no trace of a profile of the card"):
        export_modelled_trace(tmp_path / "trace.json", tmp_path / "m.json")


def test_a_kernel_name_is_no_way_out_of_the_directory(tmp_path):
    args = {"device": 0, "stream": 0, "modelled_start_ns": 0, "modelled_ns": 1, "ideal_us": 0, "op": "add"}
    row = {"ph": "X", "cat": "kernel", "name": "../../out", "ts": 0, "dur": 1, "pid": 0, "tid": 0, "args": args}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [row]}))
    with pytest.raises(ValueError, match="no file name"):
        torch_spyre.profiler.export_ideal_cycles(tmp_path / "trace.json", tmp_path / "cycles")
