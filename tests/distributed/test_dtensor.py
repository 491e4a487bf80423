"""DeviceMesh, groups, DTensor and tensor parallel modules: what one card computes."""

import pytest

from . import dtensor_programs as programs
from .ranks import Ranks


def test_each_rank_has_the_card_of_its_number(two: Ranks) -> None:
    assert two.run(programs.card_of_rank) == [("spyre:0", 6), ("spyre:1", 6)]


def test_redistribute_keeps_the_tensor(two: Ranks) -> None:
    assert two.run(programs.redistributes, (7, 66)) == ["", ""]


def test_matmul_of_shards(two: Ranks) -> None:
    assert two.run(programs.multiplies) == ["", ""]


def test_random_numbers_differ_between_shards_alone(two: Ranks) -> None:
    for found in two.run(programs.random_numbers):
        assert all(found.values()), found


def test_columns_and_rows(two: Ranks) -> None:
    assert two.run(programs.columns_and_rows) == [True, True]


@pytest.mark.slow
def test_sequence_parallel(two: Ranks) -> None:
    two.run(programs.sequence_parallel)


@pytest.mark.slow
def test_loss_parallel(two: Ranks) -> None:
    two.run(programs.parallel_loss)


@pytest.mark.slow
def test_four_ranks(four: Ranks) -> None:
    assert four.run(programs.redistributes, (9,), (2, 2)) == [""] * 4
    assert four.run(programs.multiplies) == [""] * 4
    assert all(all(found.values()) for found in four.run(programs.random_numbers))
    assert all(four.run(programs.columns_and_rows))
    assert all(four.run(programs.groups))
    four.run(programs.sequence_parallel)
    four.run(programs.parallel_loss)
