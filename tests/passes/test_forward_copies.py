"""forward_copies: ops read what a copy only repeats, permutes or widens."""

from tests.passes.stages import expect, passed, plan_of


def test_repeated_heads_are_read_where_they_are():
    plan = plan_of("""
        kernel repeat_kv
          input k: float16[2, 64] strides [64, 1]
          input x: float16[8, 64] strides [64, 1]
          output y: float16[8, 64] strides [64, 1]
          internal repeated: float16[2, 4, 64] strides [256, 64, 1]
          repeated[256,64,1] = copy(k[64,0,1]) over [2, 4, 64]
          y[64,1] = mul(x[64,1], repeated[64,1]) over [8, 64]
    """)
    expect(
        passed("forward_copies", plan).kernel,
        """\
kernel repeat_kv
  input k: float16[2, 64] strides [64, 1]
  input x: float16[8, 64] strides [64, 1]
  output y: float16[8, 64] strides [64, 1]
  y[256,64,1] = mul(x[256,64,1], k[64,0,1]) over [2, 4, 64]
""",
    )


def test_products_widen_weights_of_one_byte():
    plan = plan_of("""
        kernel linear
          input x: float16[4, 64] strides [64, 1]
          input w: int8[64, 128] strides [128, 1]
          output y: float16[4, 128] strides [128, 1]
          internal wide: float16[64, 128] strides [128, 1]
          wide[128,1] = to_real(w[128,1]) over [64, 128]
          y[128,1,0] = matmul(x[64,0,1], wide[0,1,128]) over [4, 128, 64] fold 1
    """)
    expect(
        passed("forward_copies", plan).kernel,
        """\
kernel linear
  input x: float16[4, 64] strides [64, 1]
  input w: int8[64, 128] strides [128, 1]
  output y: float16[4, 128] strides [128, 1]
  y[128,1,0] = matmul(x[64,0,1], w[0,1,128]) over [4, 128, 64] fold 1
""",
    )


def test_a_copy_stays_where_the_original_is_written_before_it_is_read():
    plan = plan_of("""
        kernel k
          input x: float16[64] strides [1]
          output y: float16[64] strides [1]
          internal old: float16[64] strides [1]
          old[1] = copy(x[1]) over [64]
          x[1] = exp(x[1]) over [64]
          y[1] = neg(old[1]) over [64]
    """)
    before = str(plan.kernel)
    assert str(passed("forward_copies", plan).kernel) == before
