"""Unmodified models in parts on several cards: what one card writes, and a part of its memory."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tests.models.architectures import error_of, relative_error  # noqa: E402

from . import model_programs as programs  # noqa: E402
from .ranks import Ranks  # noqa: E402

ROUNDINGS = 2 * 14 + 3  # see torch_spyre/models/divergence.py


SHARED = "norm|embed_tokens|router|mamba|down_proj_bias|o_proj.bias"  # what every rank has as a whole


def loaded(name: str) -> Any:
    return programs.load(name, device_map="spyre")


def agrees(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """The same tokens but where two are nearer to each other than roundings are: those of both sides, four deviations
    of a difference of two logits."""
    mine, theirs = found.argmax(-1), expected.argmax(-1)
    lead = expected.gather(1, theirs[:, None]) - expected.gather(1, mine[:, None])
    bound = 8 * error_of(ROUNDINGS) * expected.square().mean(-1, keepdim=True).sqrt()
    return bool((lead <= bound).all())


def check_tokens(written: list[int], tokens: list[int], logits: torch.Tensor) -> None:
    """The same up to a near tie, after which the texts are others."""
    same = next((i for i, pair in enumerate(zip(written, tokens, strict=True)) if pair[0] != pair[1]), programs.NEW)
    if same < programs.NEW:
        lead = logits[same, tokens[same]] - logits[same, written[same]]
        assert lead <= 8 * error_of(ROUNDINGS) * logits[same].square().mean().sqrt(), same


def check(ranks: Ranks, name: str, tmp_path: Path) -> None:
    directory = str(tmp_path / name)
    programs.save(name, directory)
    tokens, logits = programs.write(loaded(directory))
    outcomes = ranks.run(programs.tensor_parallel, directory, tokens, seconds=600)
    for written, read, memory, shared in outcomes:
        assert relative_error(read, logits) <= 2 * error_of(ROUNDINGS)
        assert agrees(read, logits)
        check_tokens(written, tokens, logits)
        assert memory["part"] <= memory["whole"] / ranks.size + sum(shared.values())
        assert all(re.search(SHARED, each) for each in shared)
        assert memory["held"] <= 1.05 * memory["part"]
        assert memory["most"] <= 1.05 * memory["part"] + memory["largest"], "more than the rank's part was loaded"
    assert len({tuple(written) for written, *_ in outcomes}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", programs.MODELS)
def test_two_ranks(two: Ranks, name: str, tmp_path: Path) -> None:
    check(two, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", programs.MODELS)
def test_four_ranks(four: Ranks, name: str, tmp_path: Path) -> None:
    check(four, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", programs.MODELS)
def test_compiled(two: Ranks, name: str, tmp_path: Path) -> None:
    programs.save(name, str(tmp_path))
    assert two.run(programs.compiled, str(tmp_path), seconds=600) == [True, True]


def check_compiled(ranks: Ranks, name: str, directory: str) -> None:
    programs.save(name, directory)
    tokens, logits = programs.write(loaded(directory))
    outcomes = ranks.run(programs.compiled_tokens, directory, seconds=1500)
    for written, _, counts in outcomes:
        check_tokens(written, tokens, logits)
        assert counts["graphs"] > 0 and counts["breaks"] == counts["fallbacks"] == 0
    assert len({tuple(written) for written, *_ in outcomes}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", programs.MODELS)
def test_compiled_steps_on_two_ranks(two: Ranks, name: str, tmp_path: Path) -> None:
    check_compiled(two, name, str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", programs.MODELS)
def test_compiled_steps_on_four_ranks(four: Ranks, name: str, tmp_path: Path) -> None:
    check_compiled(four, name, str(tmp_path))


@pytest.mark.slow
def test_fms(two: Ranks, tmp_path: Path) -> None:
    pytest.importorskip("fms")
    directory = str(tmp_path)
    programs.save("llama", directory)
    expected = programs.fms(directory, None)
    for found in two.run(programs.fms, directory, "tp"):
        assert relative_error(found, expected) <= 2 * error_of(ROUNDINGS)
