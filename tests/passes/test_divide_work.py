"""divide_work: how many cores share each loop."""

import pytest

from tests.passes.stages import expect, passed, plan_before, plan_of
from torch_spyre._inductor.errors import Unsupported


def divided(kernel: str, cores: int = 32, **more: int) -> list[str]:
    plan = passed("divide_work", plan_before("divide_work", plan_of(kernel, cores, **more)))
    return [f"{op.loop_op.name} over {op.counts} by {op.slices}" for op in plan.device_ops]


EXP = """
    kernel k
      input x: float16[48, 256] strides [256, 1]
      output y: float16[48, 256] strides [256, 1]
      y[256,1] = exp(x[256,1]) over [48, 256]
"""

CUMSUM = """
    kernel k
      input x: float16[48, 256] strides [256, 1]
      output y: float16[48, 256] strides [256, 1]
      y[256,1] = cumsum(x[256,1]) over [M 48, N 256]
"""


def test_no_core_is_idle():
    expect(
        divided(EXP),
        """\
exp over [48, 256] by [24, 1]
""",
    )
    expect(
        divided(EXP, cores=5),
        """\
exp over [48, 256] by [5, 1]
""",
    )


def test_one_folded_loop_is_shared_where_few_results_are_left():
    found = divided("""
        kernel k
          input x: float32[2, 4096] strides [4096, 1]
          output y: float32[2] strides [1]
          y[1,0] = sum(x[4096,1]) over [2, 4096] fold 1
    """)
    expect(
        found,
        """\
sum over [2, 4096] by [2, 16]
""",
    )


def test_rows_and_columns_of_a_product():
    found = divided("""
        kernel linear
          input x: float16[256, 512] strides [512, 1]
          input w: float16[512, 1024] strides [1024, 1]
          output y: float16[256, 1024] strides [1024, 1]
          y[1024,1,0] = matmul(x[512,0,1], w[0,1,1024]) over [256, 1024, 512] fold 1
    """)
    expect(
        found,
        """\
matmul over [256, 1024, 512] by [4, 8, 1]
""",
    )


def test_what_one_core_cannot_reach_is_done_in_parts():
    expect(
        divided(EXP, cores=1, span=8192),
        """\
exp over [48, 64] by [1, 1]
exp over [48, 64] by [1, 1]
exp over [48, 64] by [1, 1]
exp over [48, 64] by [1, 1]
""",
    )


def test_a_hint_that_divides_a_row_of_a_scan_is_refused():
    plan = plan_before("divide_work", plan_of(CUMSUM))
    plan.device_ops[0].loop_op.hints = {"scopes": [{"scope": 0, "work_div": {"N": 4}}]}
    with pytest.raises(Unsupported, match="to cumsum all of N is one row, which cores do not share"):
        passed("divide_work", plan)
