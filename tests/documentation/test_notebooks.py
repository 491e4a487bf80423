"""Notebooks run from the first cell to the last, in a process of their own each, without Jupyter."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, tmp_path, monkeypatch, python):
    monkeypatch.chdir(tmp_path)
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    # Each cell is compiled under its own name, with its text, so that tracebacks and lines of reports show it.
    runner = f"""
import linecache
names = {{"__name__": "__main__"}}
for number, text in enumerate({code!r}):
    name = f"<cell {{number}}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), names)
"""
    done = python(runner, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(notebook):
    found = json.loads(notebook.read_text(encoding="utf-8"))
    assert found["nbformat"] == 4 and len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    assert all(not cell["outputs"] for cell in found["cells"] if cell["cell_type"] == "code")
