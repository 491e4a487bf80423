"""``spyre run --cards`` and ``spyre timing --cards``: one report of all cards, one error of those that fail."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

SPYRE = [sys.executable, "-m", "torch_spyre.cli"]


def spyre(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    return subprocess.run([*SPYRE, *arguments], env=environment, capture_output=True, text=True, check=False)


def ranks_of(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if b"models.ranks" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_two_cards_write_what_one_writes() -> None:
    one, two = spyre("run", "--max-new-tokens", "8"), spyre("run", "--max-new-tokens", "8", "--cards", "2")
    assert (one.returncode, two.returncode) == (0, 0), two.stderr
    assert one.stdout.splitlines()[0] == two.stdout.splitlines()[0]
    cards = re.findall(r"^card (\d) +.* of .*; .* in all, modelled, ([\d.]+)% of it waiting", two.stdout, re.MULTILINE)
    assert [card for card, _ in cards] == ["0", "1"]
    assert all(0 < float(share) < 100 for _, share in cards)
    assert two.stdout.count("parameters") == two.stderr.count("loading:") == 1
    assert "3.28 million parameters" in two.stdout


def test_what_all_ranks_refuse_is_said_once() -> None:
    ended = spyre("run", "--cards", "3", "--max-new-tokens", "2")
    assert ended.returncode == 2
    said = "\n".join(line for line in ended.stderr.splitlines() if "spyre:" in line)
    assert said.count("cannot be divided among 3 cards") == ended.stderr.count("cannot be divided") == 1


@pytest.mark.parametrize("killed", [0, 1])
def test_when_a_rank_dies_all_end(killed: int) -> None:
    command = [*SPYRE, "run", "--cards", "2", "--max-new-tokens", "400", "--prompt-length", "8"]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ranks = _writing(started)
    os.kill(ranks[killed], signal.SIGKILL)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 1
    assert f"spyre: card {killed}: its process has ended with signal SIGKILL" in said.splitlines()
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


def test_an_interrupt_ends_all() -> None:
    command = [*SPYRE, "run", "--cards", "2", "--max-new-tokens", "400", "--prompt-length", "8"]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ranks = _writing(started)
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=60)
    assert started.returncode == 130
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


def _writing(started: subprocess.Popen[str]) -> list[int]:
    """The ranks, once the first token is there."""
    assert started.stdout and started.stdout.read(1)
    time.sleep(0.5)
    return ranks_of(started.pid)


def test_a_preset_is_timed_on_several_cards(tmp_path: Path) -> None:
    times = {}
    for cards in ("1", "2", "4"):
        file = tmp_path / f"{cards}.json"
        ended = spyre("timing", "llama-3.1-8b", "--layers", "1", "--prefill", "64", "--decode", "--cards", cards,
                      "--json", str(file))  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        times[cards] = {phase["phase"]: phase for phase in json.loads(file.read_text())["phases"]}
        assert ("waiting for 3 collectives" in ended.stdout) == (cards != "1")
    for name in ("prefill", "decode"):
        one, two, four = (times[cards][name] for cards in ("1", "2", "4"))
        assert one["milliseconds"] > two["milliseconds"] > four["milliseconds"]
        assert one["communication_ms"] == 0 < two["communication_ms"] < two["milliseconds"]
        assert one["card_memory_bytes"] > two["card_memory_bytes"] > four["card_memory_bytes"]
        assert one["floor_milliseconds"] == pytest.approx(4 * four["floor_milliseconds"])


def test_a_preset_that_does_not_divide_is_refused() -> None:
    ended = spyre("timing", "llama-3.1-8b", "--layers", "1", "--cards", "3")
    assert ended.returncode == 2
    assert "the model cannot be divided among 3 cards: num_attention_heads has 32" in ended.stderr
