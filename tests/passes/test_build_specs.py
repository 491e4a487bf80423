"""build_specs: the plan as OpSpecs, in the loops that neighbours share."""

from tests.passes.stages import expect, passed, plan_before, plan_of
from torch_spyre.ir.op_spec import print_op_spec


def specs(kernel: str, cores: int = 4) -> list[str]:
    plan = passed("build_specs", plan_before("build_specs", plan_of(kernel, cores)))
    return [print_op_spec(spec) for spec in plan.specs]


def test_a_value_in_lx_and_a_result_in_device_memory():
    found = specs("""
        kernel k
          input x: float16[64, 128] strides [128, 1]
          output y: float16[64] strides [1]
          internal t: float16[64, 128] strides [128, 1]
          t[128,1] = exp(x[128,1]) over [64, 128]
          y[1,0] = sum(t[128,1]) over [64, 128] fold 1
    """)
    expect(
        found,
        """\
exp over c0: 64/4, c1: 128/1
  in  arg0 SEN169_FP16[2, 64, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  out lx@0 SEN169_FP16[2, 16, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  with {"source": "", "aten": "", "loop_op": -1}
fold sum over c0: 64/4, c1: 128/1
  in  lx@0 SEN169_FP16[2, 16, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  out arg1 SEN169_FP16[1, 64, 64] at [0, c0, 0]
  with {"source": "", "aten": "", "loop_op": -1, "reduced": ["c1"]}
""",
    )


def test_neighbours_share_their_tile_loop():
    found = specs("""
        kernel k
          input x: float16[64, 128] strides [128, 1]
          output y: float16[64, 128] strides [128, 1]
          internal t: float16[16, 128] strides [128, 1]
          t[0,128,1] = exp(x[2048,128,1]) over [4, 16, 128] tiles 0:4
          y[2048,128,1] = mul(t[0,128,1], 3) over [4, 16, 128] tiles 0:4
    """)
    expect(
        found,
        """\
loop 4 over t0
  exp over c0: 16/2, c1: 128/2
    in  arg0 SEN169_FP16[2, 64, 64] at [floor(c1/64), c0 + 16*t0, Mod(c1, 64)]
    out lx@0 SEN169_FP16[1, 8, 64] at [floor(c1/64), c0, Mod(c1, 64)]
    with {"source": "", "aten": "", "loop_op": -1}
  mul over c0: 16/2, c1: 128/2
    in  lx@0 SEN169_FP16[1, 8, 64] at [floor(c1/64), c0, Mod(c1, 64)]
    out arg1 SEN169_FP16[2, 64, 64] at [floor(c1/64), c0 + 16*t0, Mod(c1, 64)]
    with {"source": "", "aten": "", "loop_op": -1, "constants": {"1": 3.0}, "formats": {"1": "SEN169_FP16"}}
""",
    )
