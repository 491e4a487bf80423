"""cast_gathered: what is gathered is cast, not the table."""

from tests.passes.stages import expect, ops_of, passed, plan_of

TABLE = """
    kernel k
      input a: float32[512, 64] strides [64, 1]
      input i: int64[{rows}] strides [1]
      output y: float16[{rows}, 64] strides [64, 1]
      internal t: float16[512, 64] strides [64, 1]
      t[64,1] = copy(a[64,1]) over [512, 64]
      y[64,1] = gather(t[0,1], i[1,0]) over [{rows}, 64] via 1:512*64
"""


def test_rows_are_cast_behind_the_gather():
    expect(
        ops_of(passed("cast_gathered", plan_of(TABLE.format(rows=4))).kernel),
        """\
  tmp4[64,1] = gather(a[0,1], i[1,0]) over [4, 64] via 1:512*64
  y[64,1] = copy(tmp4[64,1]) over [4, 64]
""",
    )


def test_more_rows_than_the_table_has_are_gathered_from_the_cast():
    expect(
        ops_of(passed("cast_gathered", plan_of(TABLE.format(rows=1024))).kernel),
        """\
  t[64,1] = copy(a[64,1]) over [512, 64]
  y[64,1] = gather(t[0,1], i[1,0]) over [1024, 64] via 1:512*64
""",
    )


def test_a_table_that_is_written_before_it_is_read_is_cast_first():
    plan = plan_of("""
        kernel k
          input a: float32[512, 64] strides [64, 1]
          input b: float32[512, 64] strides [64, 1]
          input i: int64[4] strides [1]
          output y: float16[4, 64] strides [64, 1]
          internal t: float16[512, 64] strides [64, 1]
          t[64,1] = copy(a[64,1]) over [512, 64]
          a[64,1] = neg(b[64,1]) over [512, 64]
          y[64,1] = gather(t[0,1], i[1,0]) over [4, 64] via 1:512*64
    """)
    before = ops_of(plan.kernel)
    assert ops_of(passed("cast_gathered", plan).kernel) == before
