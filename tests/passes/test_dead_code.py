"""dead_code: ops whose results are not read are gone, and so are their buffers."""

from tests.passes.stages import expect, passed, plan_of


def test_what_nobody_reads_is_not_made():
    plan = plan_of("""
        kernel k
          input x: float16[4, 64] strides [64, 1]
          output y: float16[4, 64] strides [64, 1]
          internal t: float16[4, 64] strides [64, 1]
          internal unused: float16[4, 64] strides [64, 1]
          internal last: float16[4, 64] strides [64, 1]
          t[64,1] = exp(x[64,1]) over [4, 64]
          unused[64,1] = neg(t[64,1]) over [4, 64]
          last[64,1] = neg(unused[64,1]) over [4, 64]
          y[64,1] = sqrt(t[64,1]) over [4, 64]
    """)
    expect(
        passed("dead_code", plan).kernel,
        """\
kernel k
  input x: float16[4, 64] strides [64, 1]
  output y: float16[4, 64] strides [64, 1]
  internal t: float16[4, 64] strides [64, 1]
  t[64,1] = exp(x[64,1]) over [4, 64]
  y[64,1] = sqrt(t[64,1]) over [4, 64]
""",
    )


def test_inputs_that_are_written_are_results():
    plan = plan_of("""
        kernel k
          input x: float16[64] strides [1]
          x[1] = exp(x[1]) over [64]
    """)
    expect(
        passed("dead_code", plan).kernel,
        """\
kernel k
  input x: float16[64] strides [1]
  x[1] = exp(x[1]) over [64]
""",
    )
