"""tile_products: a product with more results than the accumulators hold runs in tiles of columns."""

from tests.passes.stages import expect, passed, plan_of


def test_a_wide_product_and_its_activation_go_by_columns():
    plan = plan_of(
        """
        kernel mlp
          input x: float16[512, 2048] strides [2048, 1]
          input w: float16[2048, 8192] strides [8192, 1]
          output y: float16[512, 8192] strides [8192, 1]
          internal t: float16[512, 8192] strides [8192, 1]
          t[8192,1,0] = matmul(x[2048,0,1], w[0,1,8192]) over [512, 8192, 2048] fold 1
          y[8192,1] = silu(t[8192,1]) over [512, 8192]
        """,
        cores=32,
    )
    expect(
        passed("tile_products", plan).kernel,
        """\
kernel mlp
  input x: float16[512, 2048] strides [2048, 1]
  input w: float16[2048, 8192] strides [8192, 1]
  output y: float16[512, 8192] strides [8192, 1]
  internal t: float16[512, 4096] strides [4096, 1]
  t[0,4096,1,0] = matmul(x[0,2048,0,1], w[4096,0,1,8192]) over [tiles of columns 2, 512, columns 4096, 2048] fold 1 tiles 1048576:2
  y[4096,8192,1] = silu(t[0,4096,1]) over [tiles of columns 2, 512, columns 4096] tiles 1048576:2
""",  # noqa: E501
    )


def test_a_product_by_itself_stays():
    plan = plan_of(
        """
        kernel linear
          input x: float16[512, 2048] strides [2048, 1]
          input w: float16[2048, 8192] strides [8192, 1]
          output y: float16[512, 8192] strides [8192, 1]
          y[8192,1,0] = matmul(x[2048,0,1], w[0,1,8192]) over [512, 8192, 2048] fold 1
        """,
        cores=32,
    )
    before = str(plan.kernel)
    assert str(passed("tile_products", plan).kernel) == before
