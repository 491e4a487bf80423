"""What the device tests share."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch


@pytest.fixture
def held() -> Callable[[torch.Stream], AbstractContextManager]:
    """``with held(stream):`` keeps a stream busy inside."""

    @contextmanager
    def hold(stream: torch.spyre.Stream) -> Iterator[None]:
        gate = threading.Event()
        stream.add_callback(lambda: gate.wait(60))
        try:
            yield
        finally:
            gate.set()

    return hold


@pytest.fixture
def program(python) -> Callable[..., str]:
    """Like ``python``, for programs that must succeed: gives what they printed."""

    def run(code: str, **environment: str) -> str:
        result = python(code, **environment)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run
