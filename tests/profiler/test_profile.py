"""What PyTorch's profiler offers, with the card: schedules, memory, threads and streams, limits, the older profiler."""

import gzip
import json
import threading

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.profiler._memory_profiler import Action

import torch_spyre
from tests.profiler.traces import BOTH, check_lanes, event, halves, modelled_ms, of, on_card, trace_of
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


def test_many_cycles_have_the_same_rows_each():
    x, counts = halves(64, 64), []
    with profile(
        activities=BOTH,
        schedule=schedule(wait=1, warmup=1, active=1, repeat=30),
        on_trace_ready=lambda prof: counts.append(sum(row.device_type.name == "SPYRE" for row in prof.events())),
    ) as prof:
        for _ in range(95):
            x + x
            prof.step()
    assert counts == [1] * 30


def test_a_profile_inside_a_profile_ends_it_and_the_next_one_is_whole(tmp_path):
    x = halves(64, 64)
    with profile(activities=BOTH):  # PyTorch keeps one at a time
        x + x
        with profile(activities=BOTH) as inner:
            x + x
    assert len(of(trace_of(inner, tmp_path), "kernel")) == 1
    with profile(activities=BOTH) as prof:
        x * x
    assert len(of(trace_of(prof, tmp_path), "kernel")) == 1


def test_ops_that_raise_leave_the_profile_whole(tmp_path):
    x, far = halves(64, 64), torch.tensor([99], dtype=torch.int32, device="spyre")
    with profile(activities=BOTH) as prof:
        for _ in range(3):
            with pytest.raises(RuntimeError):
                x + halves(3)
            with pytest.raises(IndexError):
                x.index_select(0, far).cpu()
        x * x
    rows = trace_of(prof, tmp_path)
    assert any("mul" in row["name"] for row in of(rows, "kernel"))
    check_lanes(rows)


def test_device_times_of_events_add_up_to_the_time_between_marks():
    function = torch.compile(lambda x: torch.softmax(x @ x, -1))
    x = halves(128, 128)
    function(x), (x @ x).relu_()
    with profile(activities=BOTH, record_shapes=True, with_stack=True) as prof:
        start = event()
        function(x)
        (x @ x).relu_()
        end = event()
    rows = [row for row in prof.events() if row.device_type.name == "SPYRE"]
    assert sum(row.device_time for row in rows) == pytest.approx(1000 * start.elapsed_time(end), abs=1e-3 * len(rows))
    ops = [row for row in prof.key_averages(group_by_input_shape=True) if row.device_type.name == "CPU"]
    assert sum(row.self_device_time_total for row in ops) == pytest.approx(sum(row.device_time for row in rows))
    assert any(row.input_shapes == [[128, 128], [128, 128]] for row in ops if row.key == "aten::mm")
    assert len(prof.key_averages(group_by_stack_n=3)) > 0


def test_stacks_are_exported_by_device_time(tmp_path):
    x = halves(64, 64)
    with profile(
        activities=BOTH, with_stack=True, experimental_config=torch._C._profiler._ExperimentalConfig(verbose=True)
    ) as prof:
        x @ x
    prof.export_stacks(str(tmp_path / "stacks.txt"), "self_privateuse1_time_total")
    lines = (tmp_path / "stacks.txt").read_text().splitlines()
    assert any("test_stacks_are_exported" in line and int(line.rsplit(" ", 1)[1]) > 0 for line in lines)


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


@pytest.mark.parametrize("kind", ["json", "json.gz", "raw.json.gz"])
def test_a_memory_timeline_is_exported(kind, tmp_path):
    model = torch.nn.Linear(64, 64).half().to("spyre")
    with profile(activities=BOTH, profile_memory=True, record_shapes=True, with_stack=True) as prof:
        model(halves(64, 64)).sum().backward()
    path = tmp_path / f"memory.{kind}"
    prof.export_memory_timeline(str(path), device="spyre:0")
    if kind != "raw.json.gz":
        text = path.read_bytes()
        times, sizes = json.loads(gzip.decompress(text) if kind == "json.gz" else text)
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


def test_several_cards_have_lanes_of_their_own(python, tmp_path):
    done = python(
        f"""
        import json, torch
        from torch.profiler import ProfilerActivity, profile
        from torch_spyre.profiler import export_modelled_trace
        xs = [torch.ones(64, 64).half().to(f"spyre:{{i}}") for i in range(3)]
        marks = []
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof:
            for i, x in enumerate(xs):
                with torch.spyre.device(i):
                    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
                    start.record()
                    (x @ x) + x
                    end.record()
                    with torch.spyre.Stream():
                        x * 2
                    marks.append((start, end))
            xs[0].to("spyre:2")
        prof.export_chrome_trace({str(tmp_path / "trace.json")!r})
        export_modelled_trace({str(tmp_path / "trace.json")!r}, {str(tmp_path / "modelled.json")!r}, units=True)
        for _, end in marks:
            end.synchronize()
        print([start.elapsed_time(end) for start, end in marks])
        """,
        AIU_WORLD_SIZE="3",
    )
    assert done.returncode == 0, done.stderr
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert [card["id"] for card in trace["deviceProperties"]] == [0, 1, 2]
    named = {row["pid"]: row["args"]["name"] for row in trace["traceEvents"] if row["name"] == "process_name"}
    assert [named[card] for card in range(3)] == ["spyre:0", "spyre:1", "spyre:2"]
    rows = [row for row in trace["traceEvents"] if row["ph"] == "X"]
    check_lanes(rows)
    assert {(row["pid"], row["tid"]) for row in of(rows, "kernel")} == {
        (card, tid) for card in range(3) for tid in (0, 1)
    }
    assert [(row["name"], row["pid"]) for row in of(rows, "gpu_memcpy")] == [("Memcpy (DtoD, from another card)", 2)]
    for card, milliseconds in enumerate(json.loads(done.stdout.splitlines()[-1])):
        own = [row for row in of(rows, "kernel") if (row["pid"], row["tid"]) == (card, 0)]
        assert modelled_ms(own) == pytest.approx(milliseconds, rel=1e-5)


def test_forks_neither_hang_nor_change_the_profile(python):
    done = python(
        """
        import os, signal, torch
        from torch.profiler import ProfilerActivity, profile
        both = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
        x = torch.ones(64, 64).half().to("spyre")
        x + x

        def forked(body):
            child = os.fork()
            if not child:
                signal.alarm(30)
                try:
                    body()
                finally:
                    os._exit(0)
            assert os.waitpid(child, 0)[1] == 0

        def profiled():
            with profile(activities=[ProfilerActivity.CPU]) as prof:
                torch.ones(3) + 1
            assert prof.events()

        with profile(activities=both) as prof:
            x + x
            forked(lambda: torch.ones(3) + 1)
            forked(lambda: x + x)  # raises
            forked(prof.stop)
            x + x
        forked(profiled)
        forked(prof.events)
        with profile(activities=both) as later:
            x + x
        print([sum(row.device_type.name == "SPYRE" for row in each.events()) for each in (prof, later)])
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[2, 1]"


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
