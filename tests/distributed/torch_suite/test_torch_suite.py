"""PyTorch's own tests of process groups pass on cards; `make nightly` runs them by itself."""

import pytest

from .__main__ import run
from .translation import translated


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_pytorchs_own_tests(size: int) -> None:
    results = run(size, [], show=False)
    failed = [f"{each.name}: {each.text}" for each in results if each.state == "failed"]
    passed = [each for each in results if each.state == "passed"]
    assert not failed, "\n".join(failed)
    assert sum(each.calls > 0 for each in passed) >= 120, "that reached spyreccl"


def test_cuda_is_read_as_spyre() -> None:
    head = "def _build_tensor(id):\n    return x.cuda(device_id)\nclass DistributedTest:\n"
    with pytest.raises(AssertionError, match="do not have"):
        translated(head)
    with pytest.raises(AssertionError, match="another form"):
        translated("x.cuda()")
