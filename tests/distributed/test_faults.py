"""What goes wrong between ranks is said on every rank, with both sides named, and nothing hangs."""

import os
import re
import signal

import pytest

from . import faults, killed
from .ranks import Ranks, free_port

SLOW = pytest.mark.slow


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


@pytest.mark.parametrize("first, cycles", [(0, 1), pytest.param(1, 50, marks=pytest.mark.slow)])
def test_a_killed_rank_is_named_and_leaves_nothing(first: int, cycles: int) -> None:
    shared = set(os.listdir("/dev/shm"))
    for seed in range(first, first + cycles):
        size, victim = 2 + seed % 2, seed % (2 + seed % 2)
        ranks = Ranks(size)
        outcomes = ranks.outcomes(killed.run, seed, victim)
        for rank, (ok, answer) in enumerate(outcomes):
            if rank == victim:
                assert answer == f"the process ended with {-signal.SIGKILL}"
                continue
            assert ok, answer
            text, seconds = answer
            assert f"the process of rank {victim} has ended" in text
            assert seconds < 30
        ranks.close()
        assert [process.exitcode for rank, process in enumerate(ranks.processes) if rank != victim] == [0] * (size - 1)
    assert set(os.listdir("/dev/shm")) <= shared


@pytest.mark.parametrize(
    "variable, values, text",
    [
        ("AIU_WORLD_SIZE", ("2", "4"), "numbers of cards differ (AIU_WORLD_SIZE, SPYRE_DEVICES): 2 for one, 4 for the"),
        pytest.param(
            "SPYRE_CARD", ("run", "timing"), "SPYRE_CARD differs: run for one, timing for the other", marks=SLOW
        ),
        pytest.param("SENCORES", ("32", "8"), "numbers of cores differ: 32 for one, 8 for the other", marks=SLOW),
    ],
)
def test_ranks_that_do_not_fit_together(variable: str, values: tuple[str, str], text: str) -> None:
    ranks = Ranks(2, each=[{variable: value} for value in values])
    try:
        for found in ranks.run(faults.first_collective):
            assert "rank 0 and rank 1 do not fit together" in found and text in found
    finally:
        ranks.kill()


def test_ranks_of_different_versions_are_told_so(two: Ranks) -> None:
    for found in two.run(faults.of_another_version):
        assert found.startswith("DistBackendError: ")
        assert "versions of torch_spyre differ: 0.0 for one, 0.1 for the other" in found


def test_variables_of_ranks_do_not_matter_without_a_group(python) -> None:  # type: ignore[no-untyped-def]
    garbage = {"RANK": "x", "WORLD_SIZE": "-3", "LOCAL_WORLD_SIZE": "", "MASTER_ADDR": "?", "MASTER_PORT": "99999999"}
    done = python("import torch; print((torch.ones(3, device='spyre') + 1).sum().item())", **garbage)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "6.0\n" and done.stderr == ""


@pytest.mark.parametrize("ends", ["pass", "os._exit(7)", "work = dist.all_reduce(x, async_op=True)"])
def test_ends_without_destroying_the_group(python, ends: str) -> None:  # type: ignore[no-untyped-def]
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = python(
        f"""
        import os, torch, torch.distributed as dist
        dist.init_process_group()
        x = torch.ones(3, device="spyre")
        dist.all_reduce(x)
        {ends}
        """,
        **place,
    )
    assert done.returncode == (7 if "7" in ends else 0), done.stderr


def test_a_straggler_is_named(two: Ranks) -> None:
    """A quarter of the time-out has passed."""
    (text, said), late = two.run(faults.late, 1, 1.5, 4)
    assert not text
    assert "waits for rank 1 since 1 s; it times out after 4 s" in said
    assert late == ("", "")
