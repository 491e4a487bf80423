"""The runner of nightly jobs, with jobs that take no time."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.nightly import jobs, runner, summary
from tests.nightly.jobs import ROOT, Job
from tests.shards import parse_shard


def python(name: str, code: str, *arguments: str, **more) -> Job:
    return Job(name, "fake", (sys.executable, "-c", code, *arguments), more.pop("minutes", 0.1), **more)


COUNTS = "import json, sys; json.dump({'passed': 5, 'failed': %d, 'skipped': 1}, open(sys.argv[1], 'w')); sys.exit(%d)"
NOTE = "import sys; open(sys.argv[1], 'a').write('x')"


def run(given, state, **more):
    return runner.run(given, state, lambda line: None, root=state.parent, **more)


def test_finished_jobs_are_not_run_again(tmp_path):
    ran = tmp_path / "ran"
    job = python("notes", NOTE, str(ran))
    first = run([job], tmp_path / "state")
    assert run([job, python("second", NOTE, str(ran))], tmp_path / "state")[0] == first[0]
    assert ran.read_text() == "xx"  # each once


def test_a_stopped_run_goes_on_where_it_was(tmp_path):
    ran, state = tmp_path / "ran", tmp_path / "state"
    given = [python("first", NOTE, str(ran)), python("second", NOTE, str(ran))]

    def stop(line: str) -> None:
        if "second" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(given, state, stop, root=tmp_path)
    assert ran.read_text() == "x"
    assert [each.passed for each in run(given, state)] == [1, 1]
    assert ran.read_text() == "xx"


def test_half_a_state_file_is_no_result(tmp_path):
    ran, state = tmp_path / "ran", tmp_path / "state"
    job = python("notes", NOTE, str(ran))
    run([job], state)
    (state / "notes.json").write_text('{"name": "no')
    assert run([job], state)[0].passed == 1 and ran.read_text() == "xx"


def test_failures_are_counted_and_run_again_if_asked(tmp_path):
    job = python("counts", COUNTS % (2, 1), "{result}")
    (outcome,) = run([job], tmp_path / "state")
    assert (outcome.passed, outcome.failed, outcome.skipped) == (5, 2, 1) and "counts.log" in outcome.note
    fixed = python("counts", COUNTS % (0, 0), "{result}")
    assert run([fixed], tmp_path / "state") == [outcome]
    (again,) = run([fixed], tmp_path / "state", retry=True)
    assert (again.failed, again.note) == (0, "")


def test_a_failing_job_does_not_stop_the_others(tmp_path):
    outcomes = run([python("bad", "raise SystemExit(3)"), python("good", "")], tmp_path / "state")
    assert [(each.passed, each.failed) for each in outcomes] == [(0, 1), (1, 0)]
    assert "code 3" in outcomes[0].note


def test_counts_without_failures_do_not_hide_an_exit_code(tmp_path):
    (outcome,) = run([python("odd", COUNTS % (0, 4), "{result}")], tmp_path / "state")
    assert (outcome.passed, outcome.failed) == (5, 1) and "code 4" in outcome.note


def test_a_killed_job_is_a_failure(tmp_path):
    (outcome,) = run([python("killed", "import os; os.kill(os.getpid(), 9)")], tmp_path / "state")
    assert outcome.failed == 1 and "SIGKILL" in outcome.note


def test_a_hanging_job_ends_with_all_it_started(tmp_path, monkeypatch):
    child = tmp_path / "child"
    code = "import subprocess as s, sys, time; p = s.Popen(['sleep', '600']); open(sys.argv[1], 'w').write(str(p.pid))"
    monkeypatch.setattr(runner, "PATIENCE", -29.9)  # with a job of a minute: six seconds
    (outcome,) = run([python("hangs", f"{code}; time.sleep(600)", str(child), minutes=1)], tmp_path / "state")
    assert outcome.failed == 1 and "not done" in outcome.note
    assert _gone(int(child.read_text()))


def test_a_killed_run_takes_its_job_along_and_has_not_done_it(tmp_path):
    child, state = tmp_path / "child", tmp_path / "state"
    program = f"""
import os, sys
from tests.nightly import __main__, jobs
code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
jobs.table = lambda count, night: [jobs.Job("sleeps", "fake", (sys.executable, "-c", code, {str(child)!r}), 1)]
sys.argv = ["nightly", "--state", {str(state)!r}]
__main__.main()
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    for _ in range(600):
        if child.exists() and child.read_text():
            break
        time.sleep(0.1)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert _gone(int(child.read_text()))
    assert not list(state.rglob("*.json"))


def test_a_signal_while_a_job_starts_takes_it_along(tmp_path, monkeypatch):
    class Interrupted(subprocess.Popen):
        """The signal comes when the process runs, and its starter has not heard of it yet."""

        def __init__(self, *arguments, **more):
            super().__init__(*arguments, **more)
            started.append(self.pid)
            signal.raise_signal(signal.SIGINT)

    started = []
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run([python("sleeps", "import time; time.sleep(600)")], tmp_path / "state")
    finally:
        signal.signal(signal.SIGINT, before)
    assert _gone(*started)


def _gone(pid: int) -> bool:
    """Ended, or waiting for its parent to look."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    return False


def test_a_job_without_its_file_is_skipped(tmp_path):
    (outcome,) = run([python("absent", "", needs="nothing.py")], tmp_path / "state")
    assert (outcome.passed, outcome.failed, outcome.skipped) == (0, 0, 1)


def test_shards_are_all_jobs_once_and_about_as_long():
    every = jobs.table(2)
    for parts in (1, 2, 3, 7):
        shards = [runner.shard(every, part, parts) for part in range(1, parts + 1)]
        assert sorted(job.name for each in shards for job in each) == sorted(job.name for job in every)
        loads = [sum(job.minutes for job in each) for each in shards]
        assert max(loads) - min(loads) <= max(job.minutes for job in every)
        assert shards == [runner.shard(every[::-1], part, parts) for part in range(1, parts + 1)]


def test_a_night_is_short_enough():
    every = jobs.table(2)
    assert sum(job.minutes for job in every) <= 150
    assert all(sum(job.minutes for job in runner.shard(every, part, 2)) <= 75 for part in (1, 2))


def test_failures_that_a_command_tolerates_are_counted_and_end_well(tmp_path):
    (outcome,) = run([python("tolerates", COUNTS % (2, 0), "{result}")], tmp_path / "state")
    assert (outcome.passed, outcome.failed, outcome.ok) == (5, 2, True)


def test_a_command_finds_what_it_kept_until_it_is_retried(tmp_path):
    keep = "import sys; open(sys.argv[1], 'a').write('x'); sys.exit(len(open(sys.argv[1]).read()) % 2)"
    job = python("keeps", keep, "{kept}")
    assert not run([job], tmp_path / "state")[0].ok
    kept = tmp_path / "state/keeps.kept"
    assert kept.read_text() == "x"
    (tmp_path / "state/keeps.json").unlink()  # as if it had been interrupted
    assert run([job], tmp_path / "state")[0].ok and kept.read_text() == "xx"
    kept.write_text("")
    (tmp_path / "state/keeps.json").unlink()
    assert not run([job], tmp_path / "state")[0].ok
    kept.write_text("to be forgotten")
    assert not run([job], tmp_path / "state", retry=True)[0].ok and kept.read_text() == "x"


def test_the_table_has_names_of_its_own():
    every = jobs.table(2)
    assert len({job.name for job in every}) == len(every)
    mutation = [job for job in every if job.layer == "mutation"]
    assert sum(int(job.command[job.command.index("--count") + 1]) for job in mutation) == 50_000


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "-1/2"])
def test_no_shards(text):
    with pytest.raises(ValueError):
        parse_shard(text)


def test_the_state_is_that_of_a_commit(tmp_path):
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@localhost")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "one")
    first = runner.commit(tmp_path)
    (tmp_path / "file").write_text("2")
    changed = runner.commit(tmp_path)
    git("commit", "-am", "two")
    assert len({first, changed, runner.commit(tmp_path)}) == 3 and changed.startswith(first)
    (tmp_path / "docs").mkdir()
    page = tmp_path / runner.GENERATED[0]
    page.write_text("1")
    git("add", ".")
    git("commit", "-m", "three")
    third = runner.commit(tmp_path)
    page.write_text("2")  # by a job of this run
    assert runner.commit(tmp_path) == third


def test_pytest_runs_in_parts(tmp_path):
    (tmp_path / "test_some.py").write_text("def test_a(): pass\ndef test_b(): pass\ndef test_c(): assert 0\n")
    outcomes = []
    for part in ("1/2", "2/2"):
        chosen = ("-p", "tests.nightly.part", "--part", part, "--rootdir", str(tmp_path), "-c", "/dev/null")
        command = (sys.executable, "-m", "pytest", str(tmp_path), "--junitxml", "{result}", *chosen)
        outcomes += runner.run([Job(f"part {part[0]}", "fake", command, 1)], tmp_path / "state", lambda line: None)
    assert [(each.passed, each.failed) for each in outcomes] == [(1, 1), (1, 0)]


def test_one_summary():
    outcomes = [runner.Outcome("a 1", "a", 3, 1, 0, 1.5, "a.log", False), runner.Outcome("a 2", "a", 4, 0, 2, 0.5)]
    found = summary.summarize([*outcomes, runner.Outcome("b", "b", 0, 0, 1, 0.0, "there is no x")], "abc", ["c"])
    assert found["layers"]["a"] == {"passed": 7, "failed": 1, "skipped": 2, "minutes": 2.0, "rate": 0.875}
    assert found["minutes"] == 2.0
    assert json.loads(json.dumps(found)) == found
    assert summary.text(found).splitlines() == [
        "commit abc",
        "layer            passed   failed  skipped      rate  minutes",
        "a                     7        1        2   87.50 %      2.0",
        "b                     0        0        1         -      0.0",
        "all                                                      2.0",
        "a 1: FAILED, a.log",
        "b: there is no x",
        "not run: c",
    ]


def test_the_command_lists_its_jobs():
    command = [sys.executable, "-m", "tests.nightly", "--list", "--shard", "2/3"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "min" in found.stdout


def test_every_night_has_programs_of_its_own_and_as_many_jobs():
    tonight, tomorrow = jobs.table(2, night=1), jobs.table(2, night=2)
    random = [a.layer for a, b in zip(tonight, tomorrow, strict=True) if a.command != b.command]
    assert set(random) == {"fuzz", "fuzz plans", "mutation"}
    assert [job.command for job in tonight] == [job.command for job in jobs.table(2, night=1)]
