"""tile_chains: the kernel in tiles whose values stay in LX, then the kernel as it is."""

import pytest

from tests.passes.loop_text import read
from tests.passes.stages import expect, ops_of, plan_before, plan_of, stage_of
from torch_spyre._inductor.loop_ir import Kernel
from torch_spyre._inductor.planning.chains import chain_of, split_alike

SOFTMAX = """
    kernel softmax
      input x: float16[2048, 640] strides [640, 1]
      output y: float16[2048, 640] strides [640, 1]
      internal t: float16[2048, 640] strides [640, 1]
      internal s: float16[2048] strides [1]
      t[640,1] = exp(x[640,1]) over [2048, 640]
      s[1,0] = sum(t[640,1]) over [2048, 640] fold 1
      y[640,1] = div(t[640,1], s[1,0]) over [2048, 640]
"""


@pytest.fixture
def little_lx(monkeypatch):
    monkeypatch.setenv("DXP_LX_FRAC_AVAIL", "0.99")


def alternatives() -> list[str]:
    plan = plan_before("tile_chains", plan_of(SOFTMAX, cores=32))
    return [ops_of(each.kernel) + "\n" for each in stage_of("tile_chains").plans(plan)]


def test_values_that_have_no_room_run_in_tiles(little_lx):
    expect(
        alternatives(),
        """\
  t[0,640,1] = exp(x[163840,640,1]) over [tiles of 0 8, 0 256, 640] tiles 2097152:8
  s[0,1,0] = sum(t[0,640,1]) over [tiles of 0 8, 0 256, 640] fold 1 tiles 2097152:8
  y[163840,640,1] = div(t[0,640,1], s[0,1,0]) over [tiles of 0 8, 0 256, 640] tiles 2097152:8

  t[640,1] = exp(x[640,1]) over [2048, 640]
  s[1,0] = sum(t[640,1]) over [2048, 640] fold 1
  y[640,1] = div(t[640,1], s[1,0]) over [2048, 640]

""",
    )


def test_what_fits_is_left_as_it_is():
    assert alternatives() == [ops_of(plan_of(SOFTMAX).kernel) + "\n"]


HEADS = """
    kernel heads
      internal s: float16[8, 16, 32] strides [512, 32, 1]
      internal t: float16[8, 16, 32] strides [512, 32, 1]
      internal q: float16[8, 16, 64] strides [1024, 64, 1]
      internal k: float16[2, 64, 32] strides [2048, 32, 1]
      internal u: float16[7] strides [1]
      internal r: float16[8, 16] strides [16, 1]
      s[2048,512,32,1,0] = matmul(q[4096,1024,64,0,1], k[2048,0,0,1,32]) over [2, 4, 16, 32, 64] fold 1
      t[512,32,1] = exp(s[512,32,1]) over [8, 16, 32]
      u[1] = exp(u[1]) over [7]
      r[16,1,0] = sum(t[512,32,1]) over [8, 16, 32] fold 1
"""


def split(kernel: str) -> Kernel:
    """A product over 2 x 4 heads, and what goes on with it over 8."""
    found = read(kernel)
    split_alike(found, range(4))
    return found


def test_loops_are_split_where_a_neighbour_has_two():
    expect(
        ops_of(split(HEADS)),
        """\
  s[2048,512,32,1,0] = matmul(q[4096,1024,64,0,1], k[2048,0,0,1,32]) over [2, 4, 16, 32, 64] fold 1
  t[2048,512,32,1] = exp(s[2048,512,32,1]) over [2, 4, 16, 32]
  u[1] = exp(u[1]) over [7]
  r[64,16,1,0] = sum(t[2048,512,32,1]) over [2, 4, 16, 32] fold 1
""",
    )


def test_a_chain_ends_at_a_fold_and_others_move_in_front():
    kernel = split(HEADS)
    for loop in (0, 1, 2):
        chain = chain_of(kernel, 0, loop)
        assert chain.loops == {0: loop, 1: loop, 3: loop} and chain.before == {2}
    assert chain_of(kernel, 0, 3).loops == {0: 3, 1: 3}


def test_what_waits_for_a_chain_ends_it():
    waits = "u[1,0] = sum(t[1,512]) over [7, 8] fold 1"
    assert chain_of(split(HEADS.replace("u[1] = exp(u[1]) over [7]", waits)), 0, 0).loops == {0: 0, 1: 0}
