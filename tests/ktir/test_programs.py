"""Programs of KTIR that are written by hand, against NumPy: every f16 op rounds, products sum in fp32 and round once."""

from pathlib import Path

import numpy as np
import pytest

from torch_spyre import ktir

PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture
def random():
    return np.random.default_rng(0)


def test_vector_add(random):
    x, y = (random.standard_normal(4096).astype(np.float16) for _ in range(2))
    module = ktir.load(PROGRAMS / "vector_add.mlir")
    assert np.array_equal(module.run("add", x=x, y=y, z=np.zeros_like(x))["z"], x + y)
    assert module.time("add", x=x, y=y, z=x) == module.time("add", x=x, y=y, z=x) > 0


def test_what_is_given_stays_as_it_is(random):
    x = random.standard_normal(4096).astype(np.float16)
    z = np.zeros_like(x)
    result = ktir.load(PROGRAMS / "vector_add.mlir").run("add", x=x, y=x, z=z)
    assert not z.any() and result["x"] is x and result["z"].any()
