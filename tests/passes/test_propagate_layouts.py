"""propagate_layouts: every buffer has a layout, which follows from what it is made of."""

from tests.passes.stages import expect, layouts_of, passed, plan_of
from torch_spyre._C import SpyreTensorLayout


def test_a_result_lies_in_the_sticks_of_its_operand():
    kernel = """
        kernel k
          input x: float16[8, 128] strides [128, 1]
          output y: float16[8, 128] strides [128, 1]
          internal t: float16[8, 128] strides [128, 1]
          t[128,1] = exp(x[128,1]) over [8, 128]
          y[128,1] = neg(t[128,1]) over [8, 128]
    """
    expect(
        layouts_of(passed("propagate_layouts", plan_of(kernel))),
        """\
x: [2, 8, 64] by [64, 128, 1]
t: [2, 8, 64] by [64, 128, 1]
y: [2, 8, 64] by [64, 128, 1]
""",
    )
    plan = plan_of(kernel)
    plan.layouts["x"] = SpyreTensorLayout([1, 128, 64], [64 * 128, 1, 128], plan.layouts["x"].device_dtype)
    expect(
        layouts_of(passed("propagate_layouts", plan)),
        """\
x: [1, 128, 64] by [8192, 1, 128]
t: [1, 128, 64] by [-1, 1, 128]
y: [2, 8, 64] by [64, 128, 1]
""",
    )


def test_a_fold_along_the_sticks_leaves_one_element_per_stick():
    plan = plan_of("""
        kernel k
          input x: float16[8, 128] strides [128, 1]
          output y: float16[8] strides [1]
          y[1,0] = sum(x[128,1]) over [8, 128] fold 1
    """)
    expect(
        layouts_of(passed("propagate_layouts", plan)),
        """\
x: [2, 8, 64] by [64, 128, 1]
y: [1, 8, 64] by [-1, 1, -1]
""",
    )


def test_a_product_has_its_rows_next_to_the_sticks():
    plan = plan_of("""
        kernel scores
          input q: float16[2, 16, 64] strides [1024, 64, 1]
          input k: float16[2, 64, 128] strides [8192, 128, 1]
          output y: float16[2, 16, 128] strides [2048, 128, 1]
          internal t: float16[2, 16, 128] strides [2048, 128, 1]
          t[2048,128,1,0] = matmul(q[1024,64,0,1], k[8192,0,1,128]) over [2, 16, 128, 64] fold 1
          y[2048,128,1] = exp(t[2048,128,1]) over [2, 16, 128]
    """)
    expect(
        layouts_of(passed("propagate_layouts", plan)),
        """\
q: [16, 1, 2, 64] by [64, -1, 1024, 1]
k: [64, 2, 2, 64] by [128, 64, 8192, 1]
t: [2, 2, 16, 64] by [2048, 64, 128, 1]
y: [16, 2, 2, 64] by [128, 64, 2048, 1]
""",
    )
