"""choose_layouts: the layouts of the rules, then others that the clock finds faster."""

from tests.passes.stages import expect, layouts_of, passed, plan_before, plan_of, stage_of

TURNED = """
    kernel turned
      input x: float16[2048, 512] strides [512, 1]
      input z: float16[1024, 2048] strides [2048, 1]
      output y: float16[512, 1024] strides [1024, 1]
      internal a: float16[2048, 512] strides [512, 1]
      internal b: float16[1024, 2048] strides [2048, 1]
      a[512,1] = mul(x[512,1], 2) over [2048, 512]
      b[2048,1] = mul(z[2048,1], 3) over [1024, 2048]
      y[1024,1,0] = matmul(a[1,0,512], b[0,2048,1]) over [512, 1024, 2048] fold 1
"""


def alternatives(kernel: str) -> list[str]:
    """The layouts of every alternative. Whether there is a second shows when the first has its restickifies."""
    plan = plan_before("choose_layouts", plan_of(kernel, cores=32))
    found = []
    for each in stage_of("choose_layouts").plans(plan):
        found.append("\n".join(layouts_of(each)) + "\n")
        passed("insert_restickify", each)
    return found


def test_values_that_a_product_reads_turned_are_made_turned():
    expect(
        alternatives(TURNED),
        """\
x: [8, 2048, 64] by [64, 512, 1]
z: [32, 1024, 64] by [64, 2048, 1]
a: [8, 2048, 64] by [64, 512, 1]
b: [32, 1024, 64] by [64, 2048, 1]
y: [16, 512, 64] by [64, 1024, 1]

x: [8, 2048, 64] by [64, 512, 1]
z: [32, 1024, 64] by [64, 2048, 1]
a: [8, 2048, 64] by [64, 512, 1]
b: [16, 2048, 64] by [131072, 1, 2048]
y: [16, 512, 64] by [64, 1024, 1]

""",
    )


def test_where_the_rules_leave_no_move_there_is_one_alternative():
    found = alternatives("""
        kernel k
          input x: float16[8, 128] strides [128, 1]
          output y: float16[8, 128] strides [128, 1]
          internal t: float16[8, 128] strides [128, 1]
          t[128,1] = exp(x[128,1]) over [8, 128]
          y[128,1] = neg(t[128,1]) over [8, 128]
    """)
    assert len(found) == 1
