"""plan_scratchpad: what every core reads just where it wrote it has a place in LX."""

from tests.passes.stages import expect, passed, plan_before, plan_of
from torch_spyre._inductor.layout.device_ir import Plan

SOFTMAX = """
    kernel k
      input x: float16[64, 128] strides [128, 1]
      output y: float16[64, 128] strides [128, 1]
      internal t: float16[64, 128] strides [128, 1]
      internal s: float16[64] strides [1]
      t[128,1] = exp(x[128,1]) over [64, 128]
      s[1,0] = sum(t[128,1]) over [64, 128] fold 1
      y[128,1] = div(t[128,1], s[1,0]) over [64, 128]
"""


def in_lx(kernel: str, cores: int = 4) -> list[str]:
    plan = passed("plan_scratchpad", plan_before("plan_scratchpad", plan_of(kernel, cores)))
    return [f"{name} at {address}, {there.size} of every core" for name, (address, there) in plan.lx.items()]


def test_values_of_a_chain_stay():
    expect(
        in_lx(SOFTMAX),
        """\
t at 0, (2, 16, 64) of every core
s at 4096, (1, 16, 64) of every core
""",
    )


def test_a_result_takes_the_place_of_an_operand_that_is_read_for_the_last_time():
    found = in_lx("""
        kernel k
          input x: float16[64, 128] strides [128, 1]
          output y: float16[64, 128] strides [128, 1]
          internal t: float16[64, 128] strides [128, 1]
          internal u: float16[64, 128] strides [128, 1]
          t[128,1] = exp(x[128,1]) over [64, 128]
          u[128,1] = neg(t[128,1]) over [64, 128]
          y[128,1] = sqrt(u[128,1]) over [64, 128]
    """)
    expect(
        found,
        """\
t at 0, (2, 16, 64) of every core
u at 0, (2, 16, 64) of every core
""",
    )


TWO_READERS = """
    kernel k
      input x: float16[4096, 512] strides [512, 1]
      output y: float16[4096, 512] strides [512, 1]
      output z: float16[4096, 512] strides [512, 1]
      y[512,1] = exp(x[512,1]) over [4096, 512]
      z[512,1] = neg(x[512,1]) over [4096, 512]
"""


def uses(plan: Plan) -> list[str]:
    return [f"{op.loop_op.name}: {', '.join(access.buffer for access in op.accesses())}" for op in plan.device_ops]


def test_an_argument_that_several_ops_read_is_copied_there_once():
    plan = plan_before("plan_scratchpad", plan_of(TWO_READERS, cores=32))
    expect(
        uses(plan),
        """\
exp: x, y
neg: x, z
""",
    )
    expect(
        uses(passed("plan_scratchpad", plan)),
        """\
copy: x, clone3
exp: clone3, y
neg: clone3, z
""",
    )
