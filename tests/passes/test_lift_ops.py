"""lift_ops: host strides become device coordinates; views that cross dimensions of the card fall into pieces."""

from tests.passes.stages import device_ops_of, expect, passed, plan_before, plan_of


def lifted(kernel: str) -> list[str]:
    return device_ops_of(passed("lift_ops", plan_before("lift_ops", plan_of(kernel))))


def test_rows_and_sticks():
    found = lifted("""
        kernel k
          input x: float16[8, 128] strides [128, 1]
          output y: float16[8, 128] strides [128, 1]
          y[128,1] = exp(x[128,1]) over [8, 128]
    """)
    expect(
        found,
        """\
exp over [8, 128]
  x at [0, 0, 0]+[[0, 1, 0], [0, 0, 1]]
  y at [0, 0, 0]+[[0, 1, 0], [0, 0, 1]]
""",
    )


def test_a_view_that_crosses_sticks_falls_into_pieces():
    found = lifted("""
        kernel k
          input x: float16[4, 64] strides [64, 1]
          output y: float16[96] strides [1]
          y[1] = copy(x[32+1]) over [96]
    """)
    expect(
        found,
        """\
copy over [32]
  x at [0, 0, 32]+[[0, 0, 1]]
  y at [0, 0]+[[0, 1]]
copy over [32]
  x at [0, 1, 0]+[[0, 0, 1]]
  y at [0, 32]+[[0, 1]]
copy over [32]
  x at [0, 1, 32]+[[0, 0, 1]]
  y at [1, 0]+[[0, 1]]
""",
    )


def test_tile_loops_leave_the_loops_of_the_op():
    found = lifted("""
        kernel k
          input x: float16[8, 128] strides [128, 1]
          output y: float16[8, 128] strides [128, 1]
          internal t: float16[2, 128] strides [128, 1]
          t[0,128,1] = exp(x[256,128,1]) over [4, 2, 128] tiles 0:4
          y[256,128,1] = neg(t[0,128,1]) over [4, 2, 128] tiles 0:4
    """)
    expect(
        found,
        """\
exp over [2, 128]
  x at [0, 0, 0]+[[0, 1, 0], [0, 0, 1]] tiles [[0, 2, 0]]
  t at [0, 0, 0]+[[0, 1, 0], [0, 0, 1]] tiles [[0, 0, 0]]
neg over [2, 128]
  t at [0, 0, 0]+[[0, 1, 0], [0, 0, 1]] tiles [[0, 0, 0]]
  y at [0, 0, 0]+[[0, 1, 0], [0, 0, 1]] tiles [[0, 2, 0]]
""",
    )


def test_an_index_jumps_along_a_dimension_of_the_table():
    found = lifted("""
        kernel embedding
          input table: float16[100, 128] strides [128, 1]
          input rows: int64[3] strides [1]
          output y: float16[3, 128] strides [128, 1]
          y[128,1] = gather(table[0,1], rows[1,0]) over [3, 128] via 1:100*128
    """)
    expect(
        found,
        """\
gather over [3, 128]
  table at [0, 0, 0]+[[0, 0, 0], [0, 0, 1]] jumps 1 along 1
  rows at [0, 0]+[[0, 1], [0, 0]]
  y at [0, 0, 0]+[[0, 1, 0], [0, 0, 1]]
""",
    )
