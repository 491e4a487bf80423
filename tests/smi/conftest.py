"""A directory of their own for the processes of a test, and programs that use a card in it."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Start = Callable[..., subprocess.Popen]


@pytest.fixture
def counters(tmp_path, monkeypatch) -> Path:
    """The directory that processes of this test publish in and that its readers read."""
    path = tmp_path / "counters"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("SPYRE_SMI", str(path))
    return path


@pytest.fixture
def start(counters) -> Iterator[Start]:
    """Start a program that says a line when it has got somewhere, and ends when its standard input does."""
    started: list[subprocess.Popen] = []

    def begin(code: str, **environment: str) -> subprocess.Popen:
        program = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(program)
        return program

    yield begin
    for program in started:
        program.kill()
        program.wait()
        program.stdin.close()
        program.stdout.close()
