"""What the tests of torch.compile share."""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from torch._dynamo.utils import counters


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
x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
"""

    def run(code: str, **environment: str) -> str:
        result = python(start + textwrap.dedent(code), **{"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), **environment})
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr

    return run
