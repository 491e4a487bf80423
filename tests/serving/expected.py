"""What transformers makes of prompts on the CPU in fp32."""

from __future__ import annotations

from typing import Any

import torch

from tests.models import tiny

SHARE = 0.01  # of the distance between a position's largest and smallest logit


def prompts(*lengths: int) -> list[list[int]]:
    return [tiny.prompts(1, n, seed=n)[0].tolist() for n in lengths]


def check(model: Any, given: list[list[int]], found: dict[str, Any]) -> None:
    """Every greedy token is the most likely one given those before it, or as likely but for 1 % of the logits' spread,
    and so are the logarithms of their probabilities."""
    for prompt, (tokens,), told in zip(given, found["tokens"], found["logprobs"], strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
        allowed = SHARE * (logits.amax(-1) - logits.amin(-1))
        chosen = torch.tensor(tokens)[:, None]
        assert bool((logits.amax(-1) - logits.gather(-1, chosen)[:, 0] <= allowed).all())
        expected = logits.log_softmax(-1).gather(-1, chosen)[:, 0]
        own = torch.tensor([each[str(token)] for token, each in zip(tokens, told, strict=True)])
        assert bool(((own - expected).abs() <= allowed).all()), float(((own - expected).abs() / allowed).max())
