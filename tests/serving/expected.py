"""What transformers makes of prompts on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from tests.models import format_error, tiny


def prompts(*lengths: int) -> list[list[int]]:
    return [tiny.prompts(1, n, seed=n)[0].tolist() for n in lengths]


def check(model: Any, given: list[list[int]], found: dict[str, Any]) -> None:
    """The tokens that transformers chooses on the CPU in fp32, or another of its first choices within format error."""
    for prompt, (tokens,) in zip(given, found["tokens"], strict=True):
        start = torch.tensor([prompt])
        options = {"max_new_tokens": len(tokens), "min_new_tokens": len(tokens), "do_sample": False}
        expected = model.generate(start, **options)
        format_error.check_tokens(model, torch.cat([start, torch.tensor([tokens])], 1), expected)
