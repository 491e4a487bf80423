"""Text token by token, with both clocks read around every step: the wall's, and the card's modelled one.

A loop of its own, because transformers' ``generate`` shows neither the times of single steps nor tokens before it is
done. Its parts are that package's, as ``hugging_face/`` prepares them for the card: prompts and caches have the sizes
that they have in ``generate``, and so do programs.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import compile_time, device


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. Temperature 0 takes the most likely one."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass
class Step:
    """One forward: the token that it gave, seconds here, milliseconds on the card, slots of the cache if it has any.

    ``compiling``: how many of the seconds went into making or loading kernels.
    """

    token: int
    seconds: float
    card_milliseconds: float
    logits: torch.Tensor
    slots: int | None
    compiling: float = 0.0

    @property
    def running(self) -> float:
        return self.seconds - self.compiling


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


def generate(
    model: Any, prompt: list[int], count: int, sampling: Sampling, stop: frozenset[int], compiled: bool = False
) -> Iterator[Step]:
    """At most ``count`` tokens after a prompt; ends after one of ``stop``."""
    forwards = _Forwards(model, len(prompt) + count - 1, compiled)  # nobody reads what is kept of the last token
    choose = chooser(sampling)
    sequence = prompt
    for _ in range(count):
        step = _timed(forwards, sequence, choose)
        yield step
        if step.token in stop:
            return
        sequence = [*sequence, step.token]


class _Forwards:
    """A model's forwards for a sequence that grows: its prompt, then a token at a time."""

    def __init__(self, model: Any, longest: int, compiled: bool) -> None:
        from transformers.generation import GenerationMode

        self.model, self.call = model, model
        self.settings = copy.deepcopy(model.generation_config)
        self.settings.cache_implementation = "static" if compiled else None
        self.state: dict[str, Any] = {"use_cache": True}
        if model._supports_logits_to_keep():
            self.state["logits_to_keep"] = 1
        model._prepare_cache_for_generation(self.settings, self.state, GenerationMode.GREEDY_SEARCH, 1, longest)
        if model._valid_auto_compile_criteria(self.state, self.settings):
            self.call = model.get_compiled_call(self.settings.compile_config)
        self.started = False

    def next(self, sequence: list[int]) -> torch.Tensor:
        """The logits after a sequence, of which all but the last token was given before, or nothing."""
        ids = torch.tensor([sequence])
        if self.started:
            inputs = self.model.prepare_inputs_for_generation(ids, next_sequence_length=1, **self.state)
            output = self.call(**inputs, return_dict=True)
        else:
            self.state["attention_mask"] = torch.ones_like(ids)
            output = self.model._prefill(ids, self.settings, self.state)
            self.started = True
        self.state = self.model._update_model_kwargs_for_generation(output, self.state)
        return output.logits[0, -1].cpu().float()

    @property
    def slots(self) -> int | None:
        """How many tokens attention has programs for now."""
        from .hugging_face.bucketed_cache import self_attention

        cache = self_attention(self.state.get("past_key_values"))
        return None if cache is None else cache.capacity


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
def _timed(forwards: _Forwards, sequence: list[int], choose: Callable[[torch.Tensor], int]) -> Step:
    start, end = (device.Event(enable_timing=True) for _ in range(2))
    began = time.monotonic()
    start.record()
    with compile_time.watched() as compiler:
        logits = forwards.next(sequence)
    end.record()
    device.synchronize()
    took = time.monotonic() - began
    return Step(choose(logits), took, start.elapsed_time(end), logits, forwards.slots, compiler.seconds)
