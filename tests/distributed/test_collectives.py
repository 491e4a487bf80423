"""Every collective, over dtypes, shapes and reductions: the bits that one process computes."""

import pytest
import torch

from . import programs
from .programs import SHAPES
from .ranks import Ranks
from .reference import DTYPES

INTEGERS = [dtype for dtype in DTYPES if not dtype.is_floating_point and not dtype.is_complex]
REDUCTIONS = [
    *((op, dtype) for op in ("SUM", "MIN", "MAX", "PRODUCT") for dtype in (torch.float16, torch.float32, torch.int32)),
    *(("AVG", dtype) for dtype in (torch.float16, torch.float32, torch.int64)),
    *((op, dtype) for op in ("BAND", "BOR", "BXOR") for dtype in (torch.int32, torch.uint8)),
    *(("SUM", dtype) for dtype in (torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int64, torch.complex64)),
]


@pytest.mark.parametrize("op, dtype", REDUCTIONS, ids=lambda value: str(value).removeprefix("torch."))
def test_all_reduce_folds_in_the_order_of_the_ranks(two: Ranks, op: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        assert two.run(programs.all_reduce, shape, dtype, op) == [True, True], shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_travels(two: Ranks, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        assert two.run(programs.all_gather, shape, dtype) == [True, True], shape
        assert two.run(programs.broadcast, shape, dtype, 1) == [True, True], shape
        assert two.run(programs.messages, shape, dtype) == [True, True], shape


@pytest.mark.parametrize("root", [0, 1])
def test_rooted(two: Ranks, root: int) -> None:
    for shape in SHAPES:
        assert two.run(programs.reduce, shape, torch.float16, "SUM", root) == [True, True], shape
        assert two.run(programs.gather_and_scatter, shape, torch.float16, root) == [True, True], shape


def test_reduce_scatter(two: Ranks) -> None:
    for shape in SHAPES[1:]:
        assert two.run(programs.reduce_scatter, shape, torch.float16, "SUM") == [True, True], shape


@pytest.mark.parametrize("rows", [0, 1, 7, 5000])
def test_all_to_all(two: Ranks, rows: int) -> None:
    assert two.run(programs.all_to_all, rows, torch.float16) == [True, True]


@pytest.mark.slow
def test_four_ranks(four: Ranks) -> None:
    for shape in SHAPES:
        for dtype in (torch.float16, torch.float32):
            assert all(four.run(programs.all_reduce, shape, dtype, "SUM")), shape
            assert all(four.run(programs.all_gather, shape, dtype)), shape
            assert all(four.run(programs.reduce, shape, dtype, "SUM", 2)), shape
            assert all(four.run(programs.gather_and_scatter, shape, dtype, 3)), shape
            assert all(four.run(programs.messages, shape, dtype)), shape
    assert all(four.run(programs.all_to_all, 100, torch.float16))
    assert all(four.run(programs.reduce_scatter, (64, 65), torch.float16, "SUM"))
