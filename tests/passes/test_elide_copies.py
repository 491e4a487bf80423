"""elide_copies: a value that is only made to be copied is made where the copy would put it."""

from tests.passes.stages import expect, ops_of, passed, plan_of

CAT = """
    kernel cat
      input a: float16[4, 64] strides [64, 1]
      output y: float16[8, 64] strides [64, 1]
      internal t: float16[4, 64] strides [64, 1]
      internal u: float16[4, 64] strides [64, 1]
      t[64,1] = exp(a[64,1]) over [4, 64]
      u[64,1] = neg(t[64,1]) over [4, 64]
      y[64,1] = copy(t[64,1]) over [4, 64]
      y[256+64,1] = copy(u[64,1]) over [4, 64]
"""


def test_parts_are_made_in_their_places():
    expect(
        ops_of(passed("elide_copies", plan_of(CAT)).kernel),
        """\
  y[64,1] = exp(a[64,1]) over [4, 64]
  u[64,1] = neg(y[64,1]) over [4, 64]
  y[256+64,1] = copy(u[64,1]) over [4, 64]
""",
    )


def test_a_result_is_rounded_as_it_is_written():
    plan = plan_of("""
        kernel k
          input a: float16[4, 64] strides [64, 1]
          output y: float16[4, 64] strides [64, 1]
          internal t: float32[4, 64] strides [64, 1]
          t[64,1] = exp(a[64,1]) over [4, 64]
          y[64,1] = copy(t[64,1]) over [4, 64]
    """)
    expect(
        ops_of(passed("elide_copies", plan).kernel),
        """\
  y[64,1] = exp(a[64,1]) over [4, 64]
""",
    )


def test_what_is_read_unrounded_is_copied():
    plan = plan_of("""
        kernel k
          input a: float16[4, 64] strides [64, 1]
          output y: float16[4, 64] strides [64, 1]
          output z: float32[4, 64] strides [64, 1]
          internal t: float32[4, 64] strides [64, 1]
          t[64,1] = exp(a[64,1]) over [4, 64]
          y[64,1] = copy(t[64,1]) over [4, 64]
          z[64,1] = neg(t[64,1]) over [4, 64]
    """)
    expect(
        ops_of(passed("elide_copies", plan).kernel),
        """\
  t[64,1] = exp(a[64,1]) over [4, 64]
  y[64,1] = copy(t[64,1]) over [4, 64]
  z[64,1] = neg(t[64,1]) over [4, 64]
""",
    )


def test_versions_of_an_argument_are_the_argument():
    """What AOT makes of ``c.view(-1, 8)[i] = a; c.view(-1, 8)[j] = a; return c[b]``."""
    plan = plan_of("""
        kernel cache
          input c: float16[4, 16, 8] strides [128, 8, 1]
          input a: float16[2, 8] strides [8, 1]
          input i: int64[2] strides [1]
          output y: float16[2, 16, 8] strides [128, 8, 1]
          internal t: float16[64, 8] strides [8, 1]
          internal u: float16[64, 8] strides [8, 1]
          t[8,1] = copy(c[8,1]) over [64, 8]
          t[0,1] = scatter(a[8,1], i[1,0]) over [2, 8] via 1:64*8
          u[8,1] = copy(t[8,1]) over [64, 8]
          u[0,1] = scatter(a[8,1], i[1,0]) over [2, 8] via 1:64*8
          y[128,8,1] = gather(u[0,8,1], i[1,0,0]) over [2, 16, 8] via 1:4*128
          c[128,8,1] = copy(u[128,8,1]) over [4, 16, 8]
    """)
    expect(
        ops_of(passed("elide_copies", plan).kernel),
        """\
  c[0,1] = scatter(a[8,1], i[1,0]) over [2, 8] via 1:64*8
  c[0,1] = scatter(a[8,1], i[1,0]) over [2, 8] via 1:64*8
  y[128,8,1] = gather(c[0,8,1], i[1,0,0]) over [2, 16, 8] via 1:4*128
""",
    )


def test_parts_of_an_argument_are_written_apart():
    plan = plan_of("""
        kernel halves
          input c: float16[2, 16, 8] strides [128, 8, 1]
          input a: float16[2, 8] strides [8, 1]
          input i: int64[2] strides [1]
          internal t: float16[16, 8] strides [8, 1]
          internal u: float16[16, 8] strides [8, 1]
          t[8,1] = copy(c[8,1]) over [16, 8]
          u[8,1] = copy(c[128+8,1]) over [16, 8]
          t[0,1] = scatter(a[8,1], i[1,0]) over [2, 8] via 1:16*8
          u[0,1] = scatter(a[8,1], i[1,0]) over [2, 8] via 1:16*8
          c[128+8,1] = copy(u[8,1]) over [16, 8]
          c[8,1] = copy(t[8,1]) over [16, 8]
    """)
    expect(
        ops_of(passed("elide_copies", plan).kernel),
        """\
  c[0,1] = scatter(a[8,1], i[1,0]) over [2, 8] via 1:16*8
  c[128+0,1] = scatter(a[8,1], i[1,0]) over [2, 8] via 1:16*8
""",
    )


def test_an_old_version_that_is_read_later_is_kept():
    plan = plan_of("""
        kernel old
          input c: float16[16, 8] strides [8, 1]
          input a: float16[2, 8] strides [8, 1]
          input i: int64[2] strides [1]
          output y: float16[16, 8] strides [8, 1]
          internal t: float16[16, 8] strides [8, 1]
          t[8,1] = copy(c[8,1]) over [16, 8]
          t[0,1] = scatter(a[8,1], i[1,0]) over [2, 8] via 1:16*8
          y[8,1] = neg(c[8,1]) over [16, 8]
          c[8,1] = copy(t[8,1]) over [16, 8]
    """)
    before = ops_of(plan.kernel)
    assert ops_of(passed("elide_copies", plan).kernel) == before
