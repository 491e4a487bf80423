"""Programs of KTIR that are written by hand, against NumPy in double precision.

Every f16 op rounds to its format and products sum in fp32: the bounds are units of f16 in the last place of the largest
value that an element is made of, and as many as there are roundings.
"""

from pathlib import Path

import numpy as np
import pytest

from torch_spyre import ktir

PROGRAMS = Path(__file__).with_name("programs")
UNIT = 2.0**-11  # half a unit in the last place of f16, relative


@pytest.fixture
def random():
    return np.random.default_rng(0)


def halves(random, *shape):
    return random.standard_normal(shape).astype(np.float16)


def wide(*arrays):
    return [a.astype(np.float64) for a in arrays]


def run(program, function, **arrays):
    return ktir.load(PROGRAMS / f"{program}.mlir").run(function, **arrays)


def close(result, expected, units):
    """Within so many roundings of values as large as the largest."""
    assert result.shape == expected.shape
    assert np.abs(result - expected).max() <= units * UNIT * np.abs(expected).max()


def test_vector_add(random):
    x, y = halves(random, 4096), halves(random, 4096)
    module = ktir.load(PROGRAMS / "vector_add.mlir")
    assert np.array_equal(module.run("add", x=x, y=y, z=np.zeros_like(x))["z"], x + y)
    assert module.time("add", x=x, y=y, z=x) == module.time("add", x=x, y=y, z=x) > 0


@pytest.mark.parametrize("n", [1, 1000, 4096, 9999])
def test_vector_add_of_any_length(random, n):
    x, y = halves(random, n), halves(random, n)
    assert np.array_equal(run("vector_add_dynamic", "add", n=n, x=x, y=y, z=np.zeros_like(x))["z"], x + y)


def test_what_is_given_stays_as_it_is(random):
    x = halves(random, 4096)
    z = np.zeros_like(x)
    result = run("vector_add", "add", x=x, y=x, z=z)
    assert not z.any() and result["x"] is x and result["z"].any()


@pytest.mark.parametrize("program, k, n", [("matmul_loop", 8192, 2048), ("matmul_reduce", 1024, 128)])
def test_matmul(random, program, k, n):
    a, b = halves(random, 64, k), halves(random, k, n)
    left, right = a.astype(np.float32), b.astype(np.float32)
    close(run(program, "matmul", a=a, b=b, c=np.zeros((64, n), np.float16))["c"], left @ right, 1.1)


@pytest.mark.parametrize("program", ["softmax", "softmax_generic"])
def test_softmax(random, program):
    x = halves(random, 4096, 1024)
    weights = np.exp(x.astype(np.float32) - x.max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True)
    close(run(program, "softmax", x=x, y=np.zeros_like(x))["y"], expected, 4)


def test_layernorm(random):
    x, weight, bias = halves(random, 1151, 8192), halves(random, 8192), halves(random, 8192)
    rows = x.astype(np.float32)
    unit = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    result = run("layernorm", "layernorm", x=x, weight=weight, bias=bias, y=np.zeros_like(x))["y"]
    close(result, unit * weight.astype(np.float32) + bias, 1.1)


def test_rmsnorm_over_two_by_two_tiles(random):
    x, weight = halves(random, 64, 256), halves(random, 256)
    rows, gain = wide(x, weight)
    expected = rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-5) * gain
    close(run("rmsnorm", "rmsnorm", x=x, weight=weight, y=np.zeros_like(x))["y"], expected, 2.2)


def test_rope(random):
    x, cos, sin = halves(random, 40, 4096, 128), halves(random, 4096, 64), halves(random, 4096, 64)
    a, b = x[..., :64], x[..., 64:]
    expected = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    assert np.array_equal(run("rope", "rope", x=x, cos=cos, sin=sin, y=np.zeros_like(x))["y"], expected)


def attention(q, k, v, scale):
    weights = np.exp(q @ np.swapaxes(k, -1, -2) * scale)
    return weights / weights.sum(-1, keepdims=True) @ v


def test_attention(random):
    q, k, v = (halves(random, 8, 128, 64) for _ in range(3))
    close(run("attention", "attention", q=q, k=k, v=v, o=np.zeros_like(q))["o"], attention(*wide(q, k, v), 0.125), 2)


def test_paged_attention(random):
    q, k, v = halves(random, 8, 32, 128), halves(random, 256, 16, 8, 128), halves(random, 256, 16, 8, 128)
    table = random.permutation(256)[:64].reshape(8, 8).astype(np.int32)
    keys, values = (each[table].reshape(8, 128, 8, 128).repeat(4, 2).swapaxes(1, 2) for each in wide(k, v))
    expected = attention(q.astype(np.float64)[:, :, None], keys, values, 128**-0.5)[:, :, 0]
    close(run("paged_attention", "paged_attention", q=q, k=k, v=v, table=table, o=np.zeros_like(q))["o"], expected, 2)


def test_gather_and_scatter(random):
    table, rows = halves(random, 512, 64), halves(random, 128, 64)
    index = random.permutation(512)[:128].astype(np.int32)
    assert np.array_equal(run("gather", "gather", table=table, index=index, rows=rows)["rows"], table[index])
    expected = table.copy()
    expected[index] = rows
    assert np.array_equal(run("scatter", "scatter", table=table, index=index, rows=rows)["table"], expected)


def test_distributed_view_copy(random):
    x = halves(random, 256, 64)
    expected = np.concatenate([x[32:], np.zeros((32, 64), np.float16)])  # what is outside of the view is 0
    assert np.array_equal(run("distributed_copy", "copy", x=x, y=np.zeros_like(x))["y"], expected)


def test_ring_reduction(random):
    x = random.standard_normal((4, 64)).astype(np.float32)
    result = run("ring", "ring", x=x, y=np.zeros_like(x))["y"]
    np.testing.assert_allclose(result, np.broadcast_to(x.sum(0), (4, 64)), rtol=1e-5, atol=1e-6)


def test_swiglu(random):
    x, up, gate = halves(random, 16, 256), halves(random, 256, 512), halves(random, 256, 512) / np.float16(16)
    left, w3, w1 = wide(x, up, gate)
    active = left @ w1
    expected = active / (1 + np.exp(-active)) * (left @ w3)
    close(run("swiglu", "swiglu", x=x, w1=gate, w3=up, y=np.zeros((16, 512), np.float16))["y"], expected, 4)
