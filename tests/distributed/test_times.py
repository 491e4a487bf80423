"""What collectives take, asked from Python; tests/card/collective_time_test.cpp holds the estimates to their rules."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_spyre.distributed import collective_times

PROGRAM = (
    "from torch_spyre.distributed import collective_times; print(*collective_times('all_reduce', 1 << 22, 4).items())"
)


def elsewhere(**variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import torch; {PROGRAM}"]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)


def test_the_one_that_is_used_comes_first() -> None:
    times = collective_times("all_reduce", 1 << 20, 8)
    assert next(iter(times.values())) == min(times.values())
    assert collective_times("all_reduce", 1 << 20, 1) == {"alone": 0}


def test_places_of_cards_matter() -> None:
    near, far = (collective_times("broadcast", 1 << 20, places)["tree"] for places in ([0, 1], [0, 12]))
    assert near < far
    with pytest.raises(ValueError, match="there is no collective 'allreduce'"):
        collective_times("allreduce", 1, 2)


@pytest.mark.slow
def test_another_description_has_other_links(tmp_path: Path) -> None:
    file = tmp_path / "fast.toml"
    file.write_text('base = "spyre"\nlink_switch_gb_per_s = 43\n')
    slow, fast = elsewhere(), elsewhere(SPYRE_HARDWARE=str(file))
    assert slow.returncode == fast.returncode == 0
    assert slow.stdout != fast.stdout


@pytest.mark.slow
def test_the_public_variable_decides() -> None:
    assert elsewhere(COLL_ALLREDUCE_ALGO="Ring").stdout.startswith("('ring',")
    assert (
        "COLL_ALLREDUCE_ALGO is Ring or ReduceScatterAllGather, not 'Tree'"
        in elsewhere(COLL_ALLREDUCE_ALGO="Tree").stderr
    )
