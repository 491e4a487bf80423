"""What PyTorch's profiler offers, with the card: schedules, memory, threads and streams, limits, the older profiler."""

import gzip
import json
import threading

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.profiler._memory_profiler import Action

import torch_spyre
from tests.profiler.traces import BOTH, check_lanes, event, halves, of, on_card, trace_of
from torch_spyre.profiler.trace import device_rows


def test_a_schedule_profiles_its_active_steps(tmp_path):
    x, traces = halves(64, 64), []
    with profile(
        activities=BOTH,
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda prof: traces.append(trace_of(prof, tmp_path)),
    ) as prof:
        for step in range(8):
            for _ in range(step + 1):
                x + x
            prof.step()
    assert [len(of(trace, "kernel")) for trace in traces] == [3 + 4, 7 + 8]


def test_annotations_hold_the_time_of_what_is_in_them():
    x = halves(64, 64)
    with profile(activities=BOTH) as prof, record_function("mine"):
        start = event()
        x + x
        x * x
        end = event()
    mine = next(row for row in prof.key_averages() if row.key == "mine" and row.device_type.name == "CPU")
    assert mine.device_time_total == pytest.approx(1000 * start.elapsed_time(end), abs=0.01)


def test_stacks_are_recorded():
    x = halves(64, 64)
    with profile(
        activities=BOTH, with_stack=True, experimental_config=torch._C._profiler._ExperimentalConfig(verbose=True)
    ) as prof:
        x + x
    added = next(row for row in prof.events() if row.name == "aten::add")
    assert any("test_stacks_are_recorded" in frame for frame in added.stack)


def test_a_profile_ends_with_an_exception_inside(tmp_path):
    x = halves(64, 64)
    with pytest.raises(RuntimeError, match="mine"), profile(activities=BOTH) as prof:
        x + x
        raise RuntimeError("mine")
    assert len(of(trace_of(prof, tmp_path), "kernel")) == 1
    with profile(activities=BOTH) as prof:
        x * x
    assert len(of(trace_of(prof, tmp_path), "kernel")) == 1


def test_profiles_follow_one_another(tmp_path):
    x = halves(64, 64)
    for count in (1, 3, 2):
        with profile(activities=BOTH) as prof:
            for _ in range(count):
                x + x
        x - x  # between profiles
        assert len(of(trace_of(prof, tmp_path), "kernel")) == count


def test_memory_is_profiled():
    with profile(activities=BOTH, profile_memory=True) as prof:
        x = torch.empty(64, 64, dtype=torch.float16, device="spyre")
        del x
    changes = [row.device_memory_usage for row in prof.events() if row.device_memory_usage]
    made = next(row for row in prof.key_averages() if row.key == "aten::empty")
    assert made.self_device_memory_usage == 64 * 64 * 2
    assert min(changes) == -64 * 64 * 2


@pytest.mark.parametrize("kind", ["json", "raw.json.gz"])
def test_a_memory_timeline_is_exported(kind, tmp_path):
    model = torch.nn.Linear(64, 64).half().to("spyre")
    with profile(activities=BOTH, profile_memory=True, record_shapes=True, with_stack=True) as prof:
        model(halves(64, 64)).sum().backward()
    path = tmp_path / f"memory.{kind}"
    prof.export_memory_timeline(str(path), device="spyre:0")
    if kind == "json":
        times, sizes = json.loads(path.read_text())
        assert len(times) == len(sizes) > 3 and max(map(sum, sizes)) >= 3 * 64 * 64 * 2
    else:
        actions = {row[1] for row in json.loads(gzip.decompress(path.read_bytes()))}
        assert {Action.PREEXISTING.value, Action.CREATE.value, Action.DESTROY.value} <= actions


def test_the_older_profiler_has_modelled_times():
    a = halves(256, 256)
    a @ a
    with torch.autograd.profiler.profile(use_device="spyre") as prof:
        start = event()
        a @ a
        end = event()
    product = next(row for row in prof.key_averages() if row.key == "aten::mm")
    assert product.device_time_total == int(1000 * start.elapsed_time(end)) > 0  # in whole microseconds


def test_threads_and_streams_have_lanes_of_their_own(tmp_path):
    x = halves(64, 64)
    streams = [torch.spyre.Stream() for _ in range(3)]
    x + x
    torch.spyre.synchronize()

    def work(stream: torch.spyre.Stream) -> None:
        with stream:
            for _ in range(20):
                x + x

    with profile(activities=[ProfilerActivity.PrivateUse1]) as prof:
        threads = [threading.Thread(target=work, args=(stream,)) for stream in (*streams, streams[0])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = trace_of(prof, tmp_path)
    counts = {stream.stream_id: 0 for stream in streams}
    for row in of(rows, "kernel"):
        counts[row["tid"]] += 1
    assert list(counts.values()) == [40, 20, 20]
    assert len({row["tid"] for row in of(rows, "privateuse1_runtime")}) == 4
    check_lanes(rows)


def test_profiling_changes_no_bit_and_no_modelled_time():
    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)))
    model = model.half().to("spyre")
    x = halves(32, 64)

    def run() -> tuple[torch.Tensor, float]:
        start = event()
        y = model(x)
        end = event()
        return y.detach().cpu(), start.elapsed_time(end)

    run()
    plain, plain_ms = run()
    with profile(activities=BOTH, profile_memory=True, record_shapes=True):
        profiled, profiled_ms = run()
    assert torch.equal(plain, profiled) and plain_ms == profiled_ms


def test_rows_beyond_the_limit_are_counted(tmp_path):
    x = halves(64, 64)
    limit = torch_spyre.profiler.row_limit()
    torch_spyre.profiler.set_row_limit(5)
    try:
        with pytest.warns(UserWarning, match="lacks 3 more"), profile(activities=BOTH) as prof:
            for _ in range(8):
                x + x
    finally:
        torch_spyre.profiler.set_row_limit(limit)
    assert len(on_card(trace_of(prof, tmp_path))) == 5
    with pytest.raises(ValueError, match="not -1"):
        torch_spyre.profiler.set_row_limit(-1)


def test_timing_mode_has_the_same_modelled_rows(python, tmp_path):
    code = """
        import json, sys, torch
        from torch.profiler import ProfilerActivity, profile
        x = torch.ones(256, 256).half().to("spyre")
        f = torch.compile(lambda x: torch.softmax(x @ x, -1) + x)
        f(x)
        torch.spyre.synchronize()
        with torch.spyre.Stream(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof:
            x * f(x)
        prof.export_chrome_trace({path!r})
    """
    rows = {}
    for mode in ("run", "timing"):
        path = str(tmp_path / f"{mode}.json")
        result = python(code.format(path=path), SPYRE_CARD=mode)
        assert result.returncode == 0, result.stderr
        rows[mode] = [(row.name, row.start, row.duration) for row in device_rows(path)]
    assert len(rows["run"]) > 3 and rows["run"] == rows["timing"]
