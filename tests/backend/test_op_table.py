"""The op table says of the card's tile operations what the card says of itself."""

import pytest
import torch

from torch_spyre import _C
from torch_spyre.ops.table import OPS


def test_pointwise_rows_are_the_cards_tile_operations():
    rows = {(row.name, row.arity, row.parameters) for row in OPS.values() if row.kind == "pointwise" and row.function}
    assert rows == {(name, arity, parameters) for name, arity, _, _, parameters in _C.tile_ops()}


def test_folds_use_tile_operations_of_two_inputs():
    binary = {name for name, arity, *_ in _C.tile_ops() if arity == 2}
    others = {"argmax", "argmin", "wide_add", "variance"}
    assert {row.function for row in OPS.values() if row.kind in ("reduction", "scan")} <= binary | others


@pytest.mark.parametrize("row", [r for r in OPS.values() if r.kind == "pointwise"], ids=lambda row: row.name)
def test_references_take_their_inputs_and_parameters(row):
    integers = not row.function or row.name.startswith(("bitwise", "shift", "gcd"))
    x = torch.tensor([1, 2, 3]) if integers else torch.tensor([0.25, 0.5, 0.75])
    assert row.reference(*[x] * row.arity, *[1.0] * row.parameters).shape == x.shape


@pytest.mark.parametrize(
    ("name", "want"),
    [
        *[("sum", 15.0), ("mean", 2.5), ("amax", 5.0), ("amin", 0.0), ("prod", 0.0), ("any", 1.0), ("all", 0.0)],
        *[("wide_sum", 15.0), ("wide_mean", 2.5), ("variance", 17.5 / 6)],
    ],
)
def test_reductions_over_two_dimensions(name, want):
    assert OPS[name].reference(torch.arange(6.0).view(2, 3), [0, 1]).item() == pytest.approx(want)


def test_argmax_counts_in_row_major_order_over_the_folded_dimensions():
    x = torch.tensor([[[1.0, 9.0], [9.0, 0.0]]])
    assert OPS["argmax"].reference(x, [1, 2]).tolist() == [1]


def test_positions():
    table, at = torch.zeros(4, 2), torch.tensor([1, 1])
    assert OPS["iota"].reference([2, 3], 1.0, 10.0, 1.0).tolist() == [[1, 2, 3], [11, 12, 13]]
    assert OPS["gather"].reference(torch.arange(4.0), at).tolist() == [1, 1]
    assert OPS["scatter_add"].reference(table, torch.ones(2, 2), at)[1].tolist() == [2, 2]
    assert OPS["scatter_amax"].reference(table, torch.ones(2, 2), at)[1].tolist() == [1, 1]
    assert OPS["topkindex"].reference(torch.tensor([3.0, 1.0, 2.0]), 2, 1).tolist() == [0, 2]
    assert OPS["cummax_value"].reference(torch.tensor([1.0, 3.0, 2.0]), 0).tolist() == [1, 3, 3]
