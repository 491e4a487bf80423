"""resolve_aliases: arguments that share a storage become one buffer."""

from tests.passes.stages import expect, ops_of, passed, plan_of
from torch_spyre._inductor.layout.device_ir import dense_layout
from torch_spyre._inductor.loop_ir import Buffer

KERNEL = """
    kernel k
      input x: float16[64] strides [1]
      input behind: float16[64] strides [1]
      output y: float16[64] strides [1]
      y[1] = add(x[1], behind[2+1]) over [60]
      behind[1] = neg(y[1]) over [64]
"""


def test_the_second_view_of_a_storage_is_read_and_written_through_the_first():
    plan = plan_of(KERNEL, offsets={"x": 8, "behind": 13}, storages={"x": "x", "behind": "x"})
    storage = Buffer("storage", plan.kernel.buffers["x"].dtype, (128,), (1,))
    plan.layouts = dict.fromkeys(("x", "behind"), dense_layout(storage))
    expect(
        ops_of(passed("resolve_aliases", plan).kernel),
        """\
  y[1] = add(x[1], x[7+1]) over [60]
  x[5+1] = neg(y[1]) over [64]
""",
    )


def test_arguments_with_storages_of_their_own_stay():
    plan = plan_of(KERNEL, storages={"x": "x", "behind": "behind"})
    before = ops_of(plan.kernel)
    assert ops_of(passed("resolve_aliases", plan).kernel) == before
