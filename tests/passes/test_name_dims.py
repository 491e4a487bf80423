"""name_dims: loops have the names of the dimensions that they run along, whatever views lie between."""

from tests.passes.stages import expect, passed, plan_of


def test_names_follow_memory_from_an_argument():
    plan = plan_of("""
        kernel k
          input x: float16[M 4, N 64] strides [64, 1]
          input w: float16[64] strides [1]
          output y: float16[4] strides [1]
          internal t: float16[64, 4] strides [4, 1]
          t[1,4] = mul(x[64,1], w[0,1]) over [4, 64]
          y[1,0] = sum(t[1,4]) over [4, 64] fold 1
    """)
    plan.kernel.ops[0].hints = {"scopes": [{"scope": 0}]}
    expect(
        passed("name_dims", plan).kernel,
        """\
kernel k
  input x: float16[M 4, N 64] strides [64, 1]
  input w: float16[64] strides [1]
  output y: float16[4] strides [1]
  internal t: float16[64, 4] strides [4, 1]
  t[1,4] = mul(x[64,1], w[0,1]) over [M 4, N 64]
  y[1,0] = sum(t[1,4]) over [M 4, N 64] fold 1
""",
    )


def test_a_hint_names_what_its_ops_make_and_fold():
    plan = plan_of("""
        kernel linear
          input x: float16[4, 64] strides [64, 1]
          input w: float16[64, 128] strides [128, 1]
          output y: float16[4, 128] strides [128, 1]
          y[128,1,0] = matmul(x[64,0,1], w[0,1,128]) over [4, 128, 64] fold 1
    """)
    plan.kernel.ops[0].hints = {"scopes": [{"scope": 0, "named_dims": ["M", "N", "K"]}]}
    expect(
        passed("name_dims", plan).kernel,
        """\
kernel linear
  input x: float16[4, 64] strides [64, 1]
  input w: float16[64, 128] strides [128, 1]
  output y: float16[4, 128] strides [128, 1]
  y[128,1,0] = matmul(x[64,0,1], w[0,1,128]) over [M 4, N 128, K 64] fold 1
""",
    )
