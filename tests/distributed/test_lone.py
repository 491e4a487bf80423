"""A lone world: one process that stands for several cards reports what as many processes report."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from . import parts
from .ranks import Ranks


@pytest.fixture(scope="module")
def timed() -> Iterator[Ranks]:
    ranks = Ranks(2, {"SPYRE_CARD": "timing"})
    yield ranks
    ranks.close()


def lone(function: str, size: int, *args: Any, mode: str = "timing") -> str:
    """What a function of ``parts`` returns in a process that stands for ``size`` cards."""
    code = (
        "from torch_spyre.distributed import lone_world\n"
        "from tests.distributed import parts\n"
        f"with lone_world({size}):\n"
        f"    print(parts.{function}(*{args!r}))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"SPYRE_CARD": mode}, capture_output=True, text=True, check=False
    )
    return ended.stdout.strip() if ended.returncode == 0 else ended.stderr


@pytest.mark.slow
def test_collectives_take_what_they_take_with_peers(timed: Ranks) -> None:
    with_peers = timed.run(parts.collectives)
    assert with_peers[0] == with_peers[1] > 0
    assert lone("collectives", 2) == repr(with_peers[0])


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("kind", ["llama", "granite", "gpt_oss", "granitemoehybrid"])
def test_a_model_takes_what_it_takes_with_peers(timed: Ranks, kind: str, compiled: bool) -> None:
    first, second = timed.run(parts.forward_time, kind, compiled, seconds=600)
    assert first[0] == second[0] > first[1] > 0  # the second, with a smaller part of the vocabulary, waits longer
    assert lone("forward_time", 2, kind, compiled) == repr(first)


@pytest.mark.slow
def test_a_lone_world_is_for_cards_without_values() -> None:
    assert "SPYRE_CARD=timing, not 'run'" in lone("collectives", 2, mode="run")


@pytest.mark.slow
def test_there_is_nobody_to_send_to() -> None:
    assert "there is nobody to exchange messages with" in lone("message", 2)
