"""What the tests share."""

import os
import subprocess
import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.interpreters import Interpreters
from tests.sampling import covering
from torch_spyre._inductor import config

Run = Callable[..., subprocess.CompletedProcess]

# Tests here compile each of their cases: `make test` runs some that have every value of every parameter between them.
COMPILING = ("tests/inductor/", "tests/models/", "tests/eager/", "tests/device/numbers/test_precision.py")


def pytest_configure() -> None:
    """Kernels are verified after every pass, here and in the processes that tests start; TORCH_SPYRE_VERIFY=0: not."""
    os.environ.setdefault("TORCH_SPYRE_VERIFY", "1")
    config.verify = os.environ["TORCH_SPYRE_VERIFY"] == "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what the sample leaves out of a cross product as slow, before ``-m`` is asked."""
    products: dict[str, list[pytest.Function]] = {}
    for item in items:
        quick = item.nodeid.startswith(COMPILING) and item.get_closest_marker("slow") is None
        if quick and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in products.values():
        values = [{name: id(value) for name, value in case.callspec.params.items()} for case in cases]
        kept = set(covering(values))
        for i, case in enumerate(cases):
            if i not in kept:
                case.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def interpreters() -> Iterator[Interpreters]:
    found = Interpreters()
    yield found
    found.close()


@pytest.fixture
def python(interpreters) -> Run:
    """Run a program in a fresh interpreter: ``python(code, SPYRE_CARD="strict")``; keywords are its environment."""

    def run(code: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess:
        return interpreters.run(textwrap.dedent(code), {**os.environ, **environment}, timeout)

    return run


@pytest.fixture
def no_fallback() -> Iterator[None]:
    """An op that would run on the CPU is an error."""
    with torch.spyre.fallback("error"):
        yield


@pytest.fixture(autouse=True)
def quiet_card() -> Iterator[None]:
    """Each test finds the default streams, no errors left over, and leaves none behind."""
    torch.spyre.set_downcast_warning(False)
    before = dict(os.environ)
    yield
    # `spyre timing`, called in this process, sets the mode and the cache of the processes that later tests start.
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    torch.spyre.set_stream(torch.spyre.default_stream())
    torch.spyre.synchronize()
