"""Where compiling spends its time."""

import json
import os
import threading
from pathlib import Path

import pytest

from torch_spyre import compile_records
from torch_spyre.compile_records import timed


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by so many nanoseconds when it is told to."""

    class Clock:
        now = 0

        def go(self, ns: int) -> None:
            self.now += ns

    found = Clock()
    monkeypatch.setattr(compile_records.time, "perf_counter_ns", lambda: found.now)
    compile_records.start()
    yield found
    compile_records.stop()


def entries(tmp_path: Path) -> dict:
    return json.loads(compile_records.write(tmp_path).read_text())["entries"]


def test_what_runs_inside_is_inclusive_and_not_its_own(clock, tmp_path):
    with timed("pipeline:kernel"):
        clock.go(5)
        for _ in range(2):
            with timed("pass:divide_work"):
                clock.go(10)
                with timed("pass:inner"):
                    clock.go(100)
    found = entries(tmp_path)
    assert found["pipeline:kernel"] == {"inclusive_ns": 225, "self_ns": 5, "counters": {"calls": 1}}
    assert found["pass:divide_work"] == {"inclusive_ns": 220, "self_ns": 20, "counters": {"calls": 2}}
    assert found["pass:inner"] == {"inclusive_ns": 200, "self_ns": 200, "counters": {"calls": 2}}


def test_an_entry_inside_itself_is_counted_once(clock, tmp_path):
    with timed("pass:a"):
        clock.go(1)
        with timed("pass:a"):
            clock.go(10)
    assert entries(tmp_path)["pass:a"] == {"inclusive_ns": 11, "self_ns": 11, "counters": {"calls": 2}}


def test_what_raises_is_counted_too(clock, tmp_path):
    with pytest.raises(KeyError), timed("pass:a"):
        clock.go(3)
        raise KeyError
    assert entries(tmp_path)["pass:a"]["inclusive_ns"] == 3


def test_threads_add_up_and_do_not_nest(clock, tmp_path):
    def other() -> None:
        with timed("pass:a"):
            clock.go(10)

    with timed("pipeline:kernel"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    found = entries(tmp_path)
    assert found["pipeline:kernel"]["self_ns"] == 10 and found["pass:a"]["self_ns"] == 10


def test_nothing_is_recorded_unless_asked(tmp_path):
    assert timed("pass:a") is timed("pass:b")
    assert compile_records.write(tmp_path) is None and not list(tmp_path.iterdir())


PROGRAM = """
    import torch
    x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
    x + x
"""


def records(folder: Path) -> dict[int, dict]:
    return {int(file.name.split(".")[1]): json.loads(file.read_text()) for file in folder.glob("rec.*.json")}


def test_a_process_leaves_its_record(python, tmp_path):
    where = {"TORCH_SPYRE_TIMING": "1", "TORCH_SPYRE_TIMING_OUT": str(tmp_path / "out")}
    cold = python(PROGRAM, SPYRE_KERNEL_CACHE=str(tmp_path), **where)
    assert cold.returncode == 0, cold.stderr
    ((pid, found),) = records(tmp_path / "out").items()
    names = found["entries"].keys()
    assert found["pid"] == pid
    assert {"pipeline:eager", "stage:lower", "stage:passes", "stage:backend", "pass:divide_work"} <= names
    assert {name.split(":")[0] for name in names} == {"pipeline", "stage", "pass"}
    assert all(0 <= each["self_ns"] <= each["inclusive_ns"] for each in found["entries"].values())
    assert found["entries"]["stage:cache"]["counters"]["misses"] == 1
    python(PROGRAM, SPYRE_KERNEL_CACHE=str(tmp_path), **where)
    warm = next(each for number, each in records(tmp_path / "out").items() if number != pid)
    assert "stage:passes" not in warm["entries"] and warm["entries"]["stage:cache"]["counters"]["hits"] == 1


def test_children_have_records_of_their_own(python, tmp_path):
    code = """
        import multiprocessing
        from torch_spyre.compile_records import timed
        def work():
            with timed("pass:child"):
                pass
        with timed("pass:parent"):
            pass
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        print(child.pid)
    """
    result = python(code, TORCH_SPYRE_TIMING="1", TORCH_SPYRE_TIMING_OUT=str(tmp_path))
    found = records(tmp_path)
    child = found.pop(int(result.stdout))
    (parent,) = found.values()
    assert list(child["entries"]) == ["pass:child"] and list(parent["entries"]) == ["pass:parent"]


def test_a_record_that_cannot_be_written_is_a_sentence(python, tmp_path):
    (tmp_path / "file").write_text("")
    where = {"TORCH_SPYRE_TIMING": "1", "TORCH_SPYRE_TIMING_OUT": str(tmp_path / "file")}
    result = python("import torch_spyre.compile_records", **where)
    assert result.returncode == 0 and "the compile-time record was not written" in result.stderr


def test_a_record_is_complete_or_not_there(clock, tmp_path, monkeypatch):
    def fails(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        compile_records.write(tmp_path)
    assert not os.listdir(tmp_path)
