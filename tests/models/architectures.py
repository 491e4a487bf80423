"""The architectures that are followed: a descriptor each, and what is made from it.

A descriptor names a preset, which is the full configuration (timed only), what the tiny one changes of it (run and
compared), the shapes of its ops, and how often a value is rounded on its longest way through the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from torch_spyre.models import presets

DESCRIPTORS = Path(__file__).with_name("descriptors")
ORDER = ("llama", "granite", "granite_hybrid", "mistral", "qwen2", "qwen3", "gpt_oss", "gpt2")
ORDER += ("bert", "vit", "whisper")

HALF_UNIT = 2.0**-10  # the most that one rounding to SEN169 moves a number, relative to it
PROMPT, NEW = 9, 64  # tokens of the tiny models
VOCABULARY = 320  # of the tiny models
_TOKENS: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
_TINY = {"image": {}, "encoder": _TOKENS, "speech": _TOKENS, "text": _TOKENS | {"max_position_embeddings": 512}}
PREFILL = {"text": 512, "encoder": 512, "image": 0, "speech": 4}  # tokens of the full ones; speech: language, task ...


@dataclass(frozen=True)
class Architecture:
    key: str
    name: str
    preset: str
    task: str
    tiny: dict[str, Any]
    roundings: dict[str, int]
    shapes: dict[str, list[dict[str, Any]]]

    @property
    def generates(self) -> bool:
        return self.task in ("text", "speech")

    def configuration(self, size: str, **changes: Any) -> Any:
        """The tiny configuration is the full one with some numbers changed, so that ratios stay real."""
        if size == "tiny":
            changes = _TINY[self.task] | self.tiny | changes
        return presets.configuration(self.preset, changes)

    def build(self, size: str, dtype: torch.dtype, **changes: Any) -> Any:
        """With random weights; its constants (frequencies ...) are in fp32 whatever the dtype, as in a loaded model."""
        import transformers

        config = self.configuration(size, **changes)
        return getattr(transformers, config.architectures[0])._from_config(config, dtype=dtype).eval()

    def inputs(self, config: Any, tokens: int) -> dict[str, torch.Tensor]:
        """What the model is given, seeded."""
        generator = torch.Generator().manual_seed(1)
        if self.task == "image":
            side = config.image_size
            return {"pixel_values": torch.randn(1, config.num_channels, side, side, generator=generator)}
        ids = torch.randint(3, config.vocab_size, (1, tokens), generator=generator)
        if self.task == "speech":
            sound = torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)
            return {"input_features": sound, "decoder_input_ids": ids}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def tolerance(self, layers: int) -> float:
        """How far results may be off, as a share of their norm.

        Roundings to nearest are independent and of mean zero, so their squares add. One is at most HALF_UNIT and, over
        a binade, HALF_UNIT / sqrt(3) at the root mean square. Twice that allows for ops that enlarge relative errors:
        sums of opposite signs, the exponential of a score.
        """
        return error_of(self.roundings["around"] + layers * self.roundings["layer"])


def error_of(roundings: int) -> float:
    return 2 * HALF_UNIT * math.sqrt(roundings / 3)


def load(key: str) -> Architecture:
    return Architecture(key=key, **yaml.safe_load((DESCRIPTORS / f"{key}.yaml").read_text()))


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The norm of the difference, as a share of the norm of what is wanted."""
    difference, norm = (got.double() - want.double()).norm().item(), want.double().norm().item()
    return difference / norm if norm else difference
