"""Prompts of any length, one after the other, as a server gets them: after warm-up nothing compiles, nothing grows."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tests.models import format_error, tiny
from torch_spyre.models.hugging_face import warm_up

NEW_TOKENS = 6


def _compiles() -> dict[str, int]:
    return {**counters["spyre"], **counters["stats"]}


def _host_memory() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


def _serve(count: int, longest: int, sample: int, **options: Any) -> None:
    torch._dynamo.reset()
    counters.clear()
    host, card = (tiny.decoder("llama", max_position_embeddings=longest + NEW_TOKENS) for _ in range(2))
    card.to("spyre", torch.float16)
    sizes = warm_up(card, longest, NEW_TOKENS, do_sample=False, **options)
    assert len(sizes) <= 33
    assert counters["stats"]["unique_graphs"] == (2 if options else 0)  # a prompt and a step, of any length
    chance = random.Random(0)
    prompts = [tiny.prompts(1, chance.randint(1, longest), seed=i) for i in range(count)]
    compiles, memory, resident = _compiles(), [], []
    with torch.spyre.fallback("error"):
        for i, prompt in enumerate(prompts):
            found = card.generate(prompt.to("spyre"), max_new_tokens=NEW_TOKENS, do_sample=False, **options)
            if i % (count // sample) == 0:
                expected = host.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False)
                format_error.check_tokens(host, found.cpu(), expected)
            del found
            gc.collect()
            memory.append(torch.spyre.memory_allocated())
            resident.append(_host_memory())
    assert _compiles() == compiles
    assert len(set(memory)) == 1
    # What the host keeps per prompt would be seen in the second half: the first may still fill pools.
    assert max(resident[count // 2 :]) - max(resident[: count // 2]) < 8 << 20


def test_six_prompts_eagerly() -> None:
    _serve(6, longest=8, sample=2)


@pytest.mark.slow
def test_twenty_prompts_eagerly() -> None:
    _serve(20, longest=24, sample=4)


def test_six_prompts_compiled() -> None:
    _serve(6, longest=8, sample=2, cache_implementation="static")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_prompts_compiled() -> None:
    _serve(20, longest=24, sample=4, cache_implementation="static")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}], ids=["eagerly", "compiled"])
def test_two_hundred_prompts(options: dict[str, Any]) -> None:
    _serve(200, longest=1000, sample=10, **options)
