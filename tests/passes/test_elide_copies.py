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
