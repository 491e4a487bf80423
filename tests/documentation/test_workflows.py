"""The workflows say what the repository has: targets of make, files, modules."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def commands(workflow: Path) -> str:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return "\n".join(step.get("run", "") for job in jobs for step in job["steps"])


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_there_is(workflow):
    said = commands(workflow)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"\bmake ([a-z-]+)", said)) <= targets
    for module in re.findall(r"python -m ((?:tests|torch_spyre)[\w.]*)", said):
        assert (ROOT / module.replace(".", "/") / "__main__.py").exists(), module
    for path in re.findall(r"\b((?:tests|docs)/[\w/*.]+\.(?:py|yaml))", said):
        assert list(ROOT.glob(path)), path


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_ends_by_itself_and_may_only_read(workflow):
    found = yaml.safe_load(workflow.read_text())
    assert found["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 180 for job in found["jobs"].values())


def test_there_are_five():
    assert [path.stem for path in WORKFLOWS] == ["lint", "nightly", "pytorch", "test", "wheels"]
