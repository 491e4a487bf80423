"""plan_memory: values inside a kernel share one allocation, and lie apart while both are needed."""

import pytest

from tests.passes.stages import expect, passed, plan_before, plan_of
from torch_spyre._inductor import config


@pytest.fixture(autouse=True)
def no_lx():
    with config.patch(lx_planning=False):
        yield


def pool(kernel: str) -> list[str]:
    plan = passed("plan_memory", plan_before("plan_memory", plan_of(kernel)))
    return [*(f"{name} at {offset}" for name, offset in plan.pool.items()), f"{plan.pool_bytes} bytes"]


def test_what_is_dead_leaves_its_place():
    found = pool("""
        kernel k
          input x: float16[4, 64] strides [64, 1]
          output y: float16[4, 64] strides [64, 1]
          internal t: float16[4, 64] strides [64, 1]
          internal u: float16[4, 64] strides [64, 1]
          internal v: float16[4, 64] strides [64, 1]
          t[64,1] = exp(x[64,1]) over [4, 64]
          u[64,1] = neg(t[64,1]) over [4, 64]
          v[64,1] = sqrt(u[64,1]) over [4, 64]
          y[64,1] = abs(v[64,1]) over [4, 64]
    """)
    expect(
        found,
        """\
t at 0
u at 512
v at 0
1024 bytes
""",
    )


def test_what_a_loop_reads_from_outside_lives_as_long_as_the_loop():
    found = pool("""
        kernel k
          input x: float16[64, 128] strides [128, 1]
          output y: float16[64, 128] strides [128, 1]
          internal w: float16[128] strides [1]
          internal t: float16[16, 128] strides [128, 1]
          internal u: float16[16, 128] strides [128, 1]
          w[1] = exp(x[1]) over [128]
          t[0,128,1] = mul(x[2048,128,1], w[0,0,1]) over [4, 16, 128] tiles 0:4
          u[0,128,1] = neg(t[0,128,1]) over [4, 16, 128] tiles 0:4
          y[2048,128,1] = exp(u[0,128,1]) over [4, 16, 128] tiles 0:4
    """)
    expect(
        found,
        """\
w at 0
t at 256
u at 4352
8448 bytes
""",
    )
