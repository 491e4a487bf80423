"""What transformers makes of prompts on the CPU in fp32."""

from __future__ import annotations

from typing import Any

import torch

from tests.models import format_error, tiny

SHARE = 0.01  # of the distance between a position's largest and smallest logit


def prompts(*lengths: int) -> list[list[int]]:
    return [tiny.prompts(1, n, seed=n)[0].tolist() for n in lengths]


def check(model: Any, given: list[list[int]], found: dict[str, Any]) -> None:
    """Every greedy token is the most likely one given those before it, or as likely but for 1 % of the logits' spread,
    and so are the logarithms of their probabilities. Where the card's number format may turn the choice of an expert,
    and with it the logits, tokens are among those that it can choose."""
    for prompt, (tokens,), told in zip(given, found["tokens"], found["logprobs"], strict=True):
        whole, chosen = torch.tensor([prompt + tokens[:-1]]), torch.tensor(tokens)
        with torch.no_grad():
            logits = model(whole).logits[0, len(prompt) - 1 :]
        allowed = SHARE * (logits.amax(-1) - logits.amin(-1))
        expected = logits.log_softmax(-1).gather(-1, chosen[:, None])[:, 0]
        own = torch.tensor([each[str(token)] for token, each in zip(tokens, told, strict=True)])
        behind = logits.amax(-1) - logits.gather(-1, chosen[:, None])[:, 0]
        if bool(((behind > allowed) | ((own - expected).abs() > allowed)).any()):
            assert hasattr(model.config, "num_local_experts"), float(((own - expected).abs() / allowed).max())
            derived = format_error.derive(model, lambda model, whole=whole: model(whole).logits[0])
            derived.expected, derived.deviation = logits, derived.deviation[len(prompt) - 1 :]
            derived.check_choice(chosen)
