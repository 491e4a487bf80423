"""Text token by token, with both clocks read around every step: the wall's, and the card's modelled one.

transformers' ``generate`` would do, but shows neither the logits nor the times of single steps without slowing them,
and asks the values of tokens, which a card in timing mode does not have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import device
from ..constants import DEVICE_NAME

# Caches of few different lengths, so that prompts of about one length share kernels.
CACHE_GRANULARITY = 64


Forward = Callable[..., Any]


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. Temperature 0 takes the most likely one."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass
class Step:
    """One forward: the token that it gave, seconds here, milliseconds on the card."""

    token: int
    seconds: float
    card_milliseconds: float
    logits: torch.Tensor


@dataclass
class Generated:
    prompt: list[int]
    steps: list[Step] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [step.token for step in self.steps]

    @property
    def logits(self) -> torch.Tensor:
        """One row per token."""
        return torch.stack([step.logits for step in self.steps])


def compiled(model: Any) -> Forward:
    """The forward of a model as one card program per set of sizes. The model itself stays eager."""
    return torch.compile(model.forward, dynamic=None)


def generate(
    forward: Forward, config: Any, prompt: list[int], count: int, sampling: Sampling, stop: frozenset[int]
) -> Iterator[Step]:
    """At most ``count`` tokens after a prompt, from a model or its compiled forward; ends after one of ``stop``."""
    from transformers import StaticCache

    length = -(-(len(prompt) + count) // CACHE_GRANULARITY) * CACHE_GRANULARITY
    cache = StaticCache(config=config, max_cache_len=length)
    choose = chooser(sampling)
    tokens = prompt
    for _ in range(count):
        step = _step(forward, tokens, cache, choose)
        yield step
        if step.token in stop:
            return
        tokens = [step.token]


def chooser(sampling: Sampling) -> Callable[[torch.Tensor], int]:
    """Chooses from a row of logits on the host."""
    generator = torch.Generator().manual_seed(sampling.seed)

    def choose(logits: torch.Tensor) -> int:
        if sampling.temperature == 0:
            return int(logits.argmax())
        probabilities, order = torch.softmax(logits / sampling.temperature, -1).sort(descending=True)
        before = probabilities.cumsum(-1) - probabilities
        probabilities[before >= sampling.top_p] = 0  # the most likely one has nothing before it and stays
        return int(order[torch.multinomial(probabilities, 1, generator=generator)])

    return choose


@torch.no_grad()
def _step(forward: Forward, tokens: list[int], cache: Any, choose: Callable[[torch.Tensor], int]) -> Step:
    start, end = (device.Event(enable_timing=True) for _ in range(2))
    began = time.monotonic()
    start.record()
    ids = torch.tensor([tokens]).to(DEVICE_NAME)
    output = forward(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    logits = output.logits[0, -1].cpu().float()
    end.record()
    device.synchronize()
    return Step(choose(logits), time.monotonic() - began, start.elapsed_time(end), logits)
