"""Random collectives of random groups, several at a time: the bits that one process computes."""

import pytest

from . import mixed
from .ranks import Ranks


def test_of_two_ranks(two: Ranks) -> None:
    assert two.run(mixed.run, 1, 60) == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_of_four_ranks(four: Ranks, seed: int) -> None:
    assert four.run(mixed.run, 100 + seed, 250, seconds=900) == [[]] * 4
