"""Every example runs, as a user would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

NEEDS = {"generate": "transformers"}
SHOWS = {"tour": "counted: {'aten::linalg_inv"}  # an op that falls back, and has not become native since
SLOW = {  # compile many programs, time many cards, or show what a page of the documentation shows too
    "accuracy",
    "fallbacks",
    "generate",
    "hints",
    "new_op",
    "one_kernel",
    "profiling",
    "slow_program",
    "train_step",
    "what_if_card",
    "work_division",
    "wrong_result",
}
MOST_LINES = 60
EXAMPLES = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else [])
    for path in sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example):
    pytest.importorskip(NEEDS.get(example.stem, "torch"))
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert SHOWS.get(example.stem, "\n") in done.stdout


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_short(example):
    assert len(example.read_text().splitlines()) < MOST_LINES
