"""insert_restickify: copies bring operands into the sticks that an op needs."""

import torch

from tests.passes.stages import expect, layouts_of, ops_of, passed, plan_before, plan_of
from torch_spyre._inductor.layout.device_ir import dense_layout
from torch_spyre._inductor.loop_ir import Buffer, contiguous


def test_a_transposed_operand_is_turned():
    plan = plan_before(
        "insert_restickify",
        plan_of("""
        kernel k
          input x: float16[64, 128] strides [128, 1]
          input z: float16[128, 64] strides [64, 1]
          output y: float16[64, 128] strides [128, 1]
          y[128,1] = add(x[128,1], z[1,64]) over [64, 128]
    """),
    )
    passed("insert_restickify", plan)
    expect(
        [ops_of(plan.kernel), *layouts_of(plan)],
        """\
  tmp3[128,1] = restickify(z[1,64]) over [64, 128]
  y[128,1] = add(x[128,1], tmp3[128,1]) over [64, 128]
x: [2, 64, 64] by [64, 128, 1]
z: [1, 128, 64] by [-1, 64, 1]
y: [2, 64, 64] by [64, 128, 1]
tmp3: [2, 64, 64] by [64, 128, 1]
""",
    )


def test_a_copy_for_a_tile_loop_stands_before_it():
    plan = plan_before(
        "insert_restickify",
        plan_of("""
        kernel k
          input x: float16[64, 128] strides [128, 1]
          input z: float16[128, 64] strides [64, 1]
          output y: float16[64, 128] strides [128, 1]
          internal t: float16[16, 128] strides [128, 1]
          t[0,128,1] = exp(x[2048,128,1]) over [4, 16, 128] tiles 0:4
          y[2048,128,1] = add(t[0,128,1], z[16,1,64]) over [4, 16, 128] tiles 0:4
    """),
    )
    expect(
        ops_of(passed("insert_restickify", plan).kernel),
        """\
  tmp4[2048,128,1] = restickify(z[16,1,64]) over [4, 16, 128]
  t[0,128,1] = exp(x[2048,128,1]) over [4, 16, 128] tiles 0:4
  y[2048,128,1] = add(t[0,128,1], tmp4[2048,128,1]) over [4, 16, 128] tiles 0:4
""",
    )


def test_operands_in_the_same_sticks_stay():
    plan = plan_before(
        "insert_restickify",
        plan_of("""
        kernel k
          input x: float16[64, 128] strides [128, 1]
          input z: float16[64] strides [1]
          output y: float16[64, 128] strides [128, 1]
          y[128,1] = add(x[128,1], x[128,1]) over [64, 128]
    """),
    )
    before = ops_of(plan.kernel)
    assert ops_of(passed("insert_restickify", plan).kernel) == before


def test_a_move_between_sizes_without_a_common_measure_goes_through_plain_order():
    plan = plan_before(
        "insert_restickify",
        plan_of("""
        kernel k
          input x: float16[127, 129] strides [129, 1]
          output y: float16[127, 128] strides [128, 1]
          y[128,1] = copy(x[128,1]) over [M 127, N 128]
    """),
    )
    expect(
        ops_of(passed("insert_restickify", plan).kernel),
        """\
  tmp2[1] = copy(x[1]) over [16256]
  y[1] = copy(tmp2[1]) over [16256]
""",
    )


def test_an_index_along_merged_dimensions_is_split():
    """``cache.view(64, 2, 64)[i]`` of a cache that lies as [4, 16, 2, 64]."""
    cache = Buffer("c", torch.float16, (4, 16, 2, 64), contiguous((4, 16, 2, 64)))
    kernel = """
        kernel k
          input c: float16[64, 2, 64] strides [128, 64, 1]
          input i: int64[4] strides [1]
          output y: float16[4, 2, 64] strides [128, 64, 1]
          y[128,64,1] = gather(c[0,64,1], i[1,0,0]) over [4, 2, 64] via 1:64*128
    """
    plan = plan_before("insert_restickify", plan_of(kernel, layouts={"c": dense_layout(cache)}))
    passed("insert_restickify", plan)
    expect(
        ops_of(plan.kernel),
        """\
  tmp3[1] = floor_divide(i[1], 16) over [4]
  tmp4[1] = remainder(i[1], 16) over [4]
  y[128,64,1] = gather(c[0,64,1], tmp3[1,0,0], tmp4[1,0,0]) over [4, 2, 64] via 1:4*2048 via 2:16*128
""",
    )
