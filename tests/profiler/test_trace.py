"""The rows of a trace: names, categories, args, times, and how they are tied to the host."""

import json
import re
import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import torch_spyre
from tests.profiler.traces import (
    BOTH,
    check_lanes,
    check_nesting,
    event,
    halves,
    modelled_ms,
    nanoseconds,
    of,
    on_card,
    trace_of,
)

THIS_FILE = __file__.rpartition("/")[2]


def work(x: torch.Tensor) -> torch.Tensor:
    y = x + x
    z = torch.zeros(64, 64, dtype=torch.float16, device="spyre")
    z.copy_(y.t())
    return (y @ z).cpu()


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The rows of some work, with the modelled milliseconds that it takes."""
    x = halves(64, 64)
    work(x)
    with profile(activities=BOTH, record_shapes=True) as prof:
        start = event()
        host = torch.ones(64, 64, dtype=torch.float16)
        work(host.to("spyre"))
        end = event()
    return trace_of(prof, tmp_path_factory.mktemp("trace")), start.elapsed_time(end)


def test_the_profiler_is_there():
    assert torch_spyre.profiler.is_available()


def test_kernels_have_names_in_the_form_of_the_card(traced):
    names = {row["name"] for row in of(traced[0], "kernel")}
    assert any("add" in name for name in names) and any("mm" in name for name in names)
    for name in names:
        assert re.fullmatch(r"spyre_kernel_v1_[\w.\-]+_[A-Z2-7]{16}#\d+", name) and len(name.encode()) <= 128


def test_copies_and_fills_are_rows_with_their_direction(traced):
    copies = [row["name"] for row in of(traced[0], "gpu_memcpy")]
    assert sum("HtoD" in name for name in copies) == 1 and sum("DtoH" in name for name in copies) == 1
    assert len(of(traced[0], "gpu_memset")) == 1
    for row in of(traced[0], "gpu_memcpy"):
        assert row["args"]["bytes"] == 64 * 64 * 2
        rate = row["args"]["bytes"] / row["args"]["modelled_ns"]
        assert row["args"]["memory bandwidth (GB/s)"] == pytest.approx(rate, rel=1e-5)


def test_every_row_is_tied_to_its_launch(traced):
    launches = {row["args"]["correlation"]: row for row in of(traced[0], "privateuse1_runtime")}
    rows = on_card(traced[0])
    assert {row["args"]["correlation"] for row in rows} == set(launches)
    for row in rows:
        assert row["ts"] >= launches[row["args"]["correlation"]]["ts"]


def test_every_launch_is_tied_to_its_op_on_the_host(traced):
    ops = {row["args"]["External id"]: row for row in of(traced[0], "cpu_op")}
    for row in [*on_card(traced[0]), *of(traced[0], "privateuse1_runtime")]:
        assert ops[row["args"]["External id"]]["name"].startswith("aten::")
    matmul = next(row for row in of(traced[0], "kernel") if row["args"]["op"] == "matmul")
    assert ops[matmul["args"]["External id"]]["name"] == "aten::mm"
    for launch in of(traced[0], "privateuse1_runtime"):
        op = ops[launch["args"]["External id"]]
        assert op["ts"] <= launch["ts"] and launch["ts"] + launch["dur"] <= op["ts"] + op["dur"]
        assert (launch["pid"], launch["tid"]) == (op["pid"], op["tid"])


def test_kernels_say_what_they_do_and_where_they_come_from(traced):
    matmul = next(row["args"] for row in of(traced[0], "kernel") if row["args"]["op"] == "matmul")
    assert matmul["extents"] == [64, 64, 64] and len(matmul["slices"]) == 3
    assert 0 < matmul["pt_util"] < 1
    assert matmul["bytes_read"] >= 2 * 64 * 64 * 2 and matmul["bytes_written"] == 64 * 64 * 2
    assert matmul["bound_by"] == "start" and matmul["aten_op"] == "aten.mm.default"
    assert matmul["debug_handles"] == [f"{matmul['provenance_key']}/0"]
    assert matmul["provenance_key"] in next(row["name"] for row in of(traced[0], "kernel") if row["args"] is matmul)
    for row in on_card(traced[0]):
        assert re.fullmatch(rf".*{THIS_FILE}:\d+", row["args"]["source"]), row


def test_rows_add_up_to_the_time_of_events(traced):
    rows, milliseconds = traced
    assert modelled_ms(rows) == pytest.approx(milliseconds, rel=1e-6)  # elapsed_time is of single precision
    rounded = sum(nanoseconds(row["dur"]) for row in on_card(rows))
    assert rounded == pytest.approx(milliseconds * 1e6, abs=len(on_card(rows)))


def test_lanes_have_no_overlaps(traced):
    check_lanes(traced[0])


def test_rows_of_hosts_and_cards_nest(tmp_path):
    x = halves(64, 64)
    function = torch.compile(lambda x: torch.softmax(x @ x, -1))
    function(x)
    with profile(activities=BOTH) as prof:
        for _ in range(300):  # some launches end with their op, to the nanosecond
            (x + x).cpu()
            function(x)
    check_nesting(trace_of(prof, tmp_path))


def test_a_row_begins_at_the_later_of_its_launch_and_the_end_of_the_row_before(traced):
    launches = {row["args"]["correlation"]: row["ts"] for row in of(traced[0], "privateuse1_runtime")}
    end = 0
    for row in sorted(on_card(traced[0]), key=lambda row: row["ts"]):
        begins = max(end, nanoseconds(launches[row["args"]["correlation"]]))
        assert 0 <= nanoseconds(row["ts"]) - begins <= 4  # two between rows, so that floating point shows no overlap
        end = nanoseconds(row["ts"]) + nanoseconds(row["dur"])


def test_the_modelled_clock_knows_nothing_of_the_host(tmp_path):
    x = halves(64, 64)
    with profile(activities=BOTH) as prof:
        x + x
        time.sleep(0.05)
        x + x
    first, second = of(trace_of(prof, tmp_path), "kernel")
    assert second["ts"] - first["ts"] >= 50_000
    end = first["args"]["modelled_start_ns"] + first["args"]["modelled_ns"]
    assert second["args"]["modelled_start_ns"] == pytest.approx(end, abs=1e-3)


def test_a_compiled_kernel_has_a_row_per_step(tmp_path):
    @torch.compile
    def function(x):
        return torch.softmax(x @ x, -1)

    x = halves(128, 128)
    function(x)
    with profile(activities=BOTH) as prof:
        start = event()
        function(x)
        end = event()
    rows = trace_of(prof, tmp_path)
    kernels = sorted(of(rows, "kernel"), key=lambda row: row["ts"])
    assert len(kernels) > 2 and len(of(rows, "privateuse1_runtime")) == 1
    assert [row["name"].rpartition("#")[2] for row in kernels] == [str(i) for i in range(len(kernels))]
    assert all(f"{THIS_FILE}:" in row["args"]["source"] for row in kernels)
    assert modelled_ms(rows) == pytest.approx(start.elapsed_time(end), rel=1e-6)
    check_lanes(rows)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_rows_of_a_training_step_have_lines(compiled, tmp_path):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.norm = torch.nn.Linear(64, 128), torch.nn.LayerNorm(128)

        def forward(self, x):
            y = self.up(x)
            return self.norm(y)

    own = Block().half().to("spyre")
    block = torch.compile(own) if compiled else own
    optimizer = torch.optim.AdamW(own.parameters())
    x = halves(32, 64)

    def step() -> None:
        loss = block(x).pow(2).mean()
        loss.backward()
        loss = block(x).mean()  # gradients are added up
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    step()
    with profile(activities=BOTH) as prof:
        step()
    with open(__file__) as file:
        text = file.read().splitlines()
    lines = {}
    for row in on_card(trace_of(prof, tmp_path)):
        file, _, line = row["args"]["source"].rpartition(":")
        assert file == __file__, row
        lines.setdefault(row["args"].get("aten_op"), set()).add(text[int(line) - 1].strip())
    assert lines["aten.mm.default"] == {"y = self.up(x)"}
    assert lines["aten.native_layer_norm_backward.default"] == {"return self.norm(y)"}
    assert "optimizer.step()" in set().union(*lines.values())


def test_key_averages_give_device_time_to_host_ops():
    a, b = halves(256, 256), halves(256, 256)
    a @ b
    with profile(activities=BOTH) as prof:
        start = event()
        for _ in range(3):
            a @ b
        end = event()
    product = next(row for row in prof.key_averages() if row.key == "aten::mm")
    assert product.count == 3
    assert product.device_time_total == pytest.approx(1000 * start.elapsed_time(end), abs=0.01)
    assert "spyre" in prof.key_averages().table(sort_by="self_device_time_total").lower()


def test_the_card_alone_can_be_profiled(tmp_path):
    x = halves(64, 64)
    with profile(activities=[ProfilerActivity.PrivateUse1]) as prof:
        x + x
    rows = trace_of(prof, tmp_path)
    assert len(of(rows, "kernel")) == 1 and not of(rows, "cpu_op")


def test_a_profile_of_the_host_alone_has_no_rows_of_the_card(tmp_path):
    x = halves(64, 64)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        x + x
    assert not on_card(trace_of(prof, tmp_path))


def test_a_trace_says_which_cards_there_are(tmp_path):
    with profile(activities=BOTH) as prof:
        halves(64)
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    cards = json.loads((tmp_path / "trace.json").read_text())["deviceProperties"]
    assert cards[0]["cores"] == 32
