"""The cases that run every time: few, always the same, and with every value in one of them."""

from itertools import product

import pytest

from tests.ops import grid, test_reductions
from tests.sampling import covering

AXES = {"op": range(4), "dtype": range(3), "compiled": range(2)}
CROSS = [dict(zip(AXES, values, strict=True)) for values in product(*AXES.values())]


def test_every_value_of_every_parameter_once():
    chosen = covering(CROSS)
    assert len(chosen) == 4 and chosen == covering(CROSS)
    for name, axis in AXES.items():
        assert {CROSS[i][name] for i in chosen} == set(axis)


def test_every_pair_of_values():
    chosen = covering(CROSS, pairs=True)
    assert len(chosen) < len(CROSS)
    for a, b in (("op", "dtype"), ("op", "compiled"), ("dtype", "compiled")):
        assert {(CROSS[i][a], CROSS[i][b]) for i in chosen} == {(case[a], case[b]) for case in CROSS}


@pytest.mark.parametrize("cases", [[], [{}, {}], [{"only": 1}]])
def test_little_to_choose_from(cases):
    assert len(covering(cases)) == len({key for case in cases for key in case})


def test_the_grid_keeps_a_case_of_each_dtype_and_loses_none():
    rows = test_reductions.ROWS
    quick, every = ({case.id: case.values[0] for case in grid.parameters(rows, slow)} for slow in (False, True))
    assert quick.keys() < every.keys() and len(quick) < len(every) / 5
    assert every.keys() >= {str(case) for row in rows for case in grid.cases([row], most=99)}
    for row in rows:
        mine = [case for case in quick.values() if case.row is row]
        assert {case.dtype for case in mine} == set(row.dtypes)
        assert len({case.layout for case in mine}) > 1 or len(row.layouts) == 1
