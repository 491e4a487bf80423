"""What the tests of torch.compile share."""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from torch._dynamo.utils import counters

from torch_spyre._inductor import compiler


@pytest.fixture
def fresh(monkeypatch, tmp_path) -> Iterator[dict[str, Counter]]:
    """torch.compile with empty caches; gives torch's counters, at zero."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()


@pytest.fixture
def program(python, tmp_path) -> Callable[..., str]:
    """Run a program in a fresh interpreter whose caches are the test's; gives what it printed, errors included."""
    start = """
import torch
from torch._dynamo.utils import counters

from torch_spyre._inductor import compiler
x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
"""

    def run(code: str, **environment: str) -> str:
        result = python(start + textwrap.dedent(code), **{"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), **environment})
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr

    return run


@pytest.fixture
def programs(monkeypatch):
    """The steps of every kernel that is compiled, as they are handed to the card."""
    seen: list[list[dict]] = []
    original = compiler.compile_bundle

    def recorded(*args, **kwargs):
        description = original(*args, **kwargs)
        seen.append([step for job in description["steps"] for step in job["program"]["steps"]])
        return description

    monkeypatch.setattr(compiler, "compile_bundle", recorded)
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")
    return seen
