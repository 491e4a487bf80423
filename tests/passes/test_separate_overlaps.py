"""separate_overlaps: an op that would read what other points of it write goes through a buffer of its own."""

from tests.passes.stages import expect, passed, plan_of


def test_a_shift_inside_one_buffer_goes_through_another():
    plan = plan_of("""
        kernel shift
          input x: float16[65] strides [1]
          x[1+1] = neg(x[1]) over [64]
    """)
    expect(
        passed("separate_overlaps", plan).kernel,
        """\
kernel shift
  input x: float16[65] strides [1]
  internal tmp1: float16[64] strides [1]
  tmp1[1] = neg(x[1]) over [64]
  x[1+1] = copy(tmp1[1]) over [64]
""",
    )


def test_a_sum_into_what_it_sums():
    plan = plan_of("""
        kernel fold
          input x: float16[4, 64] strides [64, 1]
          x[64,0] = sum(x[64,1]) over [4, 64] fold 1
    """)
    expect(
        passed("separate_overlaps", plan).kernel,
        """\
kernel fold
  input x: float16[4, 64] strides [64, 1]
  internal tmp1: float16[4] strides [1]
  tmp1[1,0] = sum(x[64,1]) over [4, 64] fold 1
  x[64] = copy(tmp1[1]) over [4]
""",
    )


def test_values_that_are_scattered_into_their_own_table():
    plan = plan_of("""
        kernel scatter
          input x: float16[4, 64] strides [64, 1]
          input rows: int64[2] strides [1]
          x[0,1] = scatter(x[64,1], rows[1,0]) over [2, 64] via 1:4*64
    """)
    expect(
        passed("separate_overlaps", plan).kernel,
        """\
kernel scatter
  input x: float16[4, 64] strides [64, 1]
  input rows: int64[2] strides [1]
  internal tmp2: float16[2, 64] strides [64, 1]
  tmp2[64,1] = copy(x[64,1]) over [2, 64]
  x[0,1] = scatter(tmp2[64,1], rows[1,0]) over [2, 64] via 1:4*64
""",
    )


def test_point_by_point_nothing_overlaps():
    plan = plan_of("""
        kernel k
          input x: float16[4, 64] strides [64, 1]
          x[64,1] = exp(x[64,1]) over [4, 64]
    """)
    before = str(plan.kernel)
    assert str(passed("separate_overlaps", plan).kernel) == before
