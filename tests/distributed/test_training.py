"""Training on several cards: the weights that one process has after the same steps."""

from pathlib import Path

import pytest
import torch

from . import training_programs as programs
from .ranks import Ranks


@pytest.mark.parametrize("parts", [1, 2], ids=["plain", "accumulated"])
def test_replicated(two: Ranks, parts: int) -> None:
    assert two.run(programs.replicated, parts) == [True, True]


@pytest.mark.parametrize("parts", [1, 2], ids=["plain", "accumulated"])
def test_fully_sharded(two: Ranks, parts: int) -> None:
    assert two.run(programs.fully_sharded, parts) == [True, True]


def test_fully_sharded_holds_its_shard(two: Ranks) -> None:
    assert two.run(programs.holds_its_shard) == [True, True]


def test_checkpoints(two: Ranks, tmp_path: Path) -> None:
    for found in two.run(programs.checkpoints, str(tmp_path)):
        assert all(found.values()), found


@pytest.mark.parametrize(
    "dims, affine, dtype", [(4, True, torch.float32), (2, False, torch.float32), (3, True, torch.float16)]
)
def test_batch_norm_of_all_ranks(two: Ranks, dims: int, affine: bool, dtype: torch.dtype) -> None:
    two.run(programs.batch_norm_of_all, dims, affine, dtype)


@pytest.mark.slow
def test_compiled(two: Ranks) -> None:
    assert two.run(programs.replicated, 1, True) == [True, True]
    assert two.run(programs.fully_sharded, 1, (), True) == [True, True]


@pytest.mark.slow
def test_mixed_precision(two: Ranks) -> None:
    assert two.run(programs.mixed_precision) == [(True, "torch.float16")] * 2


@pytest.mark.slow
def test_clipped_gradients(two: Ranks) -> None:
    two.run(programs.clipped)


@pytest.mark.slow
def test_transformer_block(two: Ranks) -> None:
    two.run(programs.transformer_block)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
def test_stages(two: Ranks, schedule: str) -> None:
    assert two.run(programs.stages, schedule) == [True, True]


@pytest.mark.slow
def test_objects(two: Ranks) -> None:
    assert two.run(programs.objects) == [[1, 1.0], [0, 0.0]]


@pytest.mark.slow
def test_four_ranks(four: Ranks, tmp_path: Path) -> None:
    assert all(four.run(programs.replicated, 2))
    assert all(four.run(programs.fully_sharded, 2))
    assert all(four.run(programs.fully_sharded, 1, (2, 2)))
    assert all(four.run(programs.holds_its_shard))
    for found in four.run(programs.checkpoints, str(tmp_path)):
        assert all(found.values()), found
    four.run(programs.clipped)
    assert all(four.run(programs.stages, "ScheduleGPipe"))
    assert all(four.run(programs.stages, "Schedule1F1B"))
