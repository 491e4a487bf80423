"""Tiles fit LX twice, and are as large as that allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_spyre.backend.tiling import footprint, tile_of
from torch_spyre.card.lx_budget import resident_budget, tile_budget


def matmul(m: int, n: int, k: int, slices: list[int]) -> dict:
    operands = [
        {"argument": 0, "strides": [128, m * 128, 0], "format": "SEN169_FP16", "stick": 1},
        {"argument": 1, "strides": [128, 0, m * 128], "format": "SEN169_FP16", "stick": 2},
        {"argument": 2, "strides": [0, k * 128, 128], "format": "SEN169_FP16", "stick": 1},
    ]
    return {"op": "matmul", "extents": [m, n, k], "slices": slices, "operands": operands}


def test_what_stays_leaves_room_for_tiles(monkeypatch):
    assert resident_budget() == 1625344
    assert tile_budget(resident_budget()) == 406272
    monkeypatch.setenv("DXP_LX_FRAC_AVAIL", "0.5")
    assert resident_budget() == 1015808
    monkeypatch.setenv("DXP_LX_FRAC_AVAIL", "1")
    assert (resident_budget(), tile_budget(0)) == (0, 2031616)


@pytest.mark.parametrize("share", ["half", "1.5", "-0.1", "nan"])
def test_a_share_of_lx_that_is_none_is_named(share, monkeypatch):
    monkeypatch.setenv("DXP_LX_FRAC_AVAIL", share)
    with pytest.raises(ValueError, match=f"DXP_LX_FRAC_AVAIL='{share}': expected a share of LX, from 0 to 1"):
        resident_budget()


def test_a_part_that_fits_is_one_tile():
    assert tile_of(matmul(64, 256, 512, [1, 2, 1]), resident_budget()) == [64, 128, 512]


def test_outer_dimensions_are_halved_first_and_the_matrix_unit_stays_full():
    assert tile_of(matmul(4096, 256, 512, [1, 1, 1]), resident_budget()) == [256, 256, 512]
    assert tile_of(matmul(4096, 4096, 4096, [1, 1, 1]), resident_budget()) == [64, 64, 2048]


def test_what_an_index_leads_to_is_counted_per_point():
    step = {
        "op": "gather",
        "extents": [8, 64],
        "slices": [1, 1],
        "operands": [
            {"argument": 0, "strides": [128, 128], "format": "SEN169_FP16", "stick": 1},
            {"argument": 1, "strides": [0, 128], "format": "SEN169_FP16", "stick": 1},
            {"argument": 2, "strides": [4, 0], "format": "IEEE_INT32"},
        ],
        "indirect": [{"operand": 2, "extent": 100, "stride": 128, "stick": False}],
    }
    assert footprint(step, [8, 64]) == (8 + 8 + 1) * 128


def test_windows_that_overlap_count_as_the_verifier_counts_them():
    """Four taps, an element apart: the sticks of one, the elements of four."""
    step = {
        "op": "add",
        "extents": [512, 4],
        "slices": [1, 1],
        "operands": [
            {"argument": 0, "strides": [8, 2], "format": "SEN169_FP16"},
            {"argument": 1, "strides": [2, 2], "format": "SEN169_FP16"},
        ],
    }
    assert footprint(step, [512, 4]) == 2 * 512 * 4 * 2


@pytest.mark.parametrize("budget", [1 << 15, 1 << 17, 1625344])
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 5000))
def test_two_tiles_fit_in_whole_sticks(budget, m, n, k):
    step = matmul(m, n, k, [1, 1, 1])
    tile = tile_of(step, budget)
    assert 2 * footprint(step, tile) <= budget
    for points, extent, unit in zip(tile, step["extents"], (1, 64, 64), strict=True):
        assert 1 <= points <= extent and (points % unit == 0 or points == extent)
