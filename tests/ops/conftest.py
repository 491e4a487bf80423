"""Test files of this directory are tables; see grid.py. Whatever runs on the host fails."""

from collections.abc import Iterator

import pytest
import torch

from tests.ops import grid


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``case``: every case of the file's ROWS; ``cases``: groups of them that are compiled together."""
    rows = getattr(metafunc.module, "ROWS", ())
    if "case" in metafunc.fixturenames:
        # A run without slow tests makes none: there are eight for each of the others.
        metafunc.parametrize("case", grid.parameters(rows, slow=metafunc.config.option.markexpr != "not slow"))
    if "cases" in metafunc.fixturenames:
        metafunc.parametrize("cases", grid.groups(rows))


@pytest.fixture(autouse=True)
def no_fallback() -> Iterator[None]:
    torch.spyre.reset_fallback_counts()
    with torch.spyre.fallback("error"):
        yield
    assert torch.spyre.fallback_counts() == {}
