"""The pyramid of a night, its history, and what changed."""

import json
import subprocess
import sys
from dataclasses import asdict
from xml.etree import ElementTree

import pytest

from tests.nightly import jobs, report, runner
from tests.nightly.runner import Outcome

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.ops.test_sums" name="test_a[x]" time="60"/>
<testcase classname="tests.ops.test_sums" name="test_b" time="30">{}</testcase>
<testcase classname="tests.generic.test_modules.TestModules" name="test_c" time="6"/>
<testcase classname="tests.smi.test_smi" name="test_d" time="0"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def state(tmp_path):
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def night(state, commit="abc", failed="", ok=True) -> report.Night:
    (state / "slow_tests_1.result").write_text(JUNIT.format(failed))
    outcomes = [
        Outcome("slow tests 1", "slow tests", 3, 0, 1, 1.6, ok=ok),
        Outcome("fuzz 1", "fuzz", 1000, 0, 0, 3.0),
        Outcome("models", "models", 5, 0, 0, 8.0, "ended with code 1", ok=False),
    ]
    return report.collect(commit, outcomes, state, ["coverage"])


def test_levels(state):
    found = night(state)
    assert found.levels["op"] == report.Level(2, 0, 0, 1.5)
    assert found.levels["module"].passed == 1 and found.levels["tools"].skipped == 1
    assert found.levels["compiler"] == report.Level(1000, 0, 0, 3.0)
    assert found.levels["model"].rate == 1.0 and found.levels["serving"].rate is None
    assert found.failures == ["the job models"] and found.missing == ["coverage"]


def test_history_and_changes(state):
    history = state / "history.json"
    assert report.changes(report.remember(night(state), history)) is None
    nights = report.remember(night(state, "def", "<failure/>", ok=False), history)
    assert [each.commit for each in nights] == ["abc", "def"] == [each.commit for each in report.recall(history)]
    changed = report.changes(nights)
    assert (changed.since, changed.broken, changed.repaired) == ("abc", ["tests/ops/test_sums::test_b"], [])
    again = report.remember(night(state, "def"), history)  # of the same commit: the failure was run again
    assert len(again) == 2 and report.changes(again).broken == []
    assert report.changes(report.remember(night(state, "ghi"), history)).counts["op"] == 0


def test_a_damaged_history_is_begun_anew(state):
    history = state / "history.json"
    history.write_text('[{"commit": "a"')
    assert report.recall(history) == []
    assert len(report.remember(night(state), history)) == 1


def test_the_page(state):
    nights = [night(state), night(state, "d<e", "<failure/>", ok=False)]
    page = report.html(nights)
    ElementTree.fromstring(page.partition("<body>")[2].partition("</body>")[0].join(("<b>", "</b>")))  # well formed
    assert "Night of d&lt;e" in page and "Since abc" in page
    assert "<td>1</td><td>1</td><td>0</td><td>50.00 %</td><td>1.5</td><td>+0</td>" in page
    assert "<code>tests/ops/test_sums::test_b</code>" in page and "http" not in page


def test_what_other_machines_ran_is_summed_up(tmp_path):
    state = tmp_path / runner.commit()
    state.mkdir()
    (state / "models.json").write_text(
        json.dumps(asdict(Outcome("models", "models", 5, 1, 0, 8.0, "models.log", False)))
    )
    command = [sys.executable, "-m", "tests.nightly", "--report", "--state", str(tmp_path)]
    done = subprocess.run(command, cwd=jobs.ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "models" in done.stdout and "report.html has it by level" in done.stdout
    (night,) = report.recall(tmp_path / "history.json")
    assert night.levels["model"].failed == 1 and "card tests" in night.missing
