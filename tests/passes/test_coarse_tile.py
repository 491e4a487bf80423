"""coarse_tile: the ops of a hint's scope have its tile loop around them, and share buffers of one tile."""

import pytest

from tests.passes.stages import expect, passed, plan_of
from torch_spyre._inductor.errors import Unsupported

SOFTMAX = """
    kernel k
      input x: float16[8, 64] strides [64, 1]
      output y: float16[8, 64] strides [64, 1]
      internal t: float16[8, 64] strides [64, 1]
      internal s: float16[8] strides [1]
      t[64,1] = exp(x[64,1]) over [M 8, N 64]
      s[1,0] = sum(t[64,1]) over [M 8, N 64] fold 1
      y[64,1] = div(t[64,1], s[1,0]) over [M 8, N 64]
"""


def hinted(**tiles: int):
    plan = plan_of(SOFTMAX)
    for op in plan.kernel.ops:
        op.hints = {"scopes": [{"scope": 7, "num_tiles_per_dim": tiles}]}
    return plan


def test_rows_go_tile_by_tile():
    expect(
        passed("coarse_tile", hinted(M=4)).kernel,
        """\
kernel k
  input x: float16[8, 64] strides [64, 1]
  output y: float16[8, 64] strides [64, 1]
  internal t: float16[2, 64] strides [64, 1]
  internal s: float16[2] strides [1]
  t[0,64,1] = exp(x[128,64,1]) over [tiles of M 4, M 2, N 64] tiles 7:4
  s[0,1,0] = sum(t[0,64,1]) over [tiles of M 4, M 2, N 64] fold 1 tiles 7:4
  y[128,64,1] = div(t[0,64,1], s[0,1,0]) over [tiles of M 4, M 2, N 64] tiles 7:4
""",
    )


def test_a_folded_dimension_has_no_tiles():
    with pytest.raises(Unsupported, match="sum folds it"):
        passed("coarse_tile", hinted(N=2))
