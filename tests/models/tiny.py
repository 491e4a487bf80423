"""The tiny models of the descriptors, for tests that say no more than a name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .architectures import ORDER, VOCABULARY, load

pytest.importorskip("transformers")

DECODERS = tuple(key for key in ORDER if load(key).task == "text")


def decoder(key: str, seed: int = 0, **changes: Any) -> Any:
    return _built(key, seed, **changes)


def bert() -> Any:
    return _built("bert")


def vit() -> Any:
    return _built("vit")


def whisper() -> Any:
    """For a second of sound, with room for 64 tokens that nothing ends."""
    changes = {"max_source_positions": 50, "max_target_positions": 80, "eos_token_id": None}
    return _built("whisper", num_mel_bins=80, **changes)


def _built(key: str, seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return load(key).build("tiny", torch.float32, **changes)


def prompts(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
