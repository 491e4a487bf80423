"""What goes wrong between ranks is said on every rank, with both sides named, and nothing hangs."""

import re

import pytest

from . import faults
from .ranks import Ranks


@pytest.mark.parametrize(
    "kind, sides",
    {
        "op": ("all_reduce(SUM) of Half [4]", "broadcast of Half [4] with root rank 0"),
        "reduce op": ("all_reduce(SUM) of Half [4]", "all_reduce(MAX) of Half [4]"),
        "shape": ("all_reduce(SUM) of Half [4]", "all_reduce(SUM) of Half [5]"),
        "dtype": ("all_reduce(SUM) of Half [4]", "all_reduce(SUM) of Float [4]"),
        "root": ("broadcast of Half [4] with root rank 0", "broadcast of Half [4] with root rank 1"),
        "sizes": ("rank 0 sends 2 elements to rank 1", "wants 3"),
    }.items(),
)
def test_calls_that_do_not_match(two: Ranks, kind: str, sides: tuple[str, str]) -> None:
    for text, after in two.run(faults.mismatch, kind):
        assert text.startswith("DistBackendError")
        for side in sides:
            assert side in text
        assert after == 2, "the group can be used afterwards"


def test_another_order(two: Ranks) -> None:
    for texts in two.run(faults.other_order):
        for text in texts:
            assert "rank 0 calls" in text and "rank 1 calls" in text and "barrier" in text


def test_the_one_that_does_not_join_is_named(two: Ranks) -> None:
    (text, took), _ = two.run(faults.absent, 1, 2)
    assert "Timed out after 2 s: rank 1 did not join; no other member did" in text
    assert 1.9 < took < 20


def test_time_out_of_a_message(two: Ranks) -> None:
    text, _ = two.run(faults.unsent, 1)
    assert "Timed out after 1 s: rank 1 did not send it" in text


def test_a_message_of_another_size(two: Ranks) -> None:
    _, text = two.run(faults.wrong_message)
    assert "rank 0 sends 5 elements of Half, this side expects 4 elements of Half" in text


def test_wait_with_a_time(two: Ranks) -> None:
    (early, ended, value), (_, other_ended, other) = two.run(faults.wait_with_time)
    assert "has not ended within 100 ms" in early
    assert not ended and not other_ended
    assert value == other == 2


def test_failed_work_in_front_of_a_collective(two: Ranks) -> None:
    for text in two.run(faults.failed_before):
        assert "earlier work of rank 1 failed" in text


def test_destroyed_under_way(two: Ranks) -> None:
    """It waits for what was asked for."""
    assert two.run(faults.destroy_under_way, True, 30) == ["2.0", "2.0"]
    here, other = two.run(faults.destroy_under_way, False, 2)
    assert "Timed out after 2 s: rank 1 did not join" in here
    assert "rank 0 has given up: rank 1 did not join" in other


def test_an_interrupt(two: Ranks) -> None:
    (raises, _), (_, text) = two.run(faults.interrupted)
    assert raises
    assert "rank 0 has given up: it was interrupted" in text


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_groups_leave_nothing_behind(two: Ranks, times: int) -> None:
    for uses in two.run(faults.again_and_again, times):
        for what, (before, after) in uses.items():
            assert after <= before, what


def test_monitored_barrier(two: Ranks) -> None:
    assert two.run(faults.barrier, (), False) == ["", ""]
    here, _ = two.run(faults.barrier, (1,), False)
    assert re.search("Rank 1 failed to pass monitoredBarrier in 500 ms", here)


@pytest.mark.slow
def test_monitored_barrier_names_all(four: Ranks) -> None:
    texts = four.run(faults.barrier, (1, 3), True)
    assert "Ranks 1, 3 failed to pass monitoredBarrier" in texts[0]
    assert "Rank 2 successfully reached monitoredBarrier" in texts[2] and "Ranks 1, 3 failed" in texts[2]


@pytest.mark.slow
def test_who_joined_is_named_too(four: Ranks) -> None:
    texts = [text for text, _ in four.run(faults.absent, 2, 2)]
    assert all("rank 2 did not join" in texts[rank] for rank in (0, 1, 3))
    assert texts[2] == ""
