"""keep_fold_orders: layouts in which a sum would go another way are refused."""

import pytest

from tests.passes.stages import passed, plan_before, plan_of
from torch_spyre._inductor.errors import Unsupported
from torch_spyre._inductor.layout.fold_order import fold_orders

KERNEL = """
    kernel k
      input x: float16[4, 8, 64] strides [512, 64, 1]
      output y: float16[4] strides [1]
      y[1,0,0] = sum(x[512,64,1]) over [4, 8, 64] fold 2
"""


def test_the_same_order_passes_and_nothing_changes():
    plan = plan_before("keep_fold_orders", plan_of(KERNEL))
    plan.fold_orders, before = fold_orders(plan), str(plan)
    assert str(passed("keep_fold_orders", plan)) == before


def test_another_order_is_refused():
    plan = plan_before("keep_fold_orders", plan_of(KERNEL))
    plan.fold_orders = {("y", 0): (-2, (-1, -2))}
    with pytest.raises(Unsupported, match="tiles that change the order of a sum"):
        passed("keep_fold_orders", plan)
