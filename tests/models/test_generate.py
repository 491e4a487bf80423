"""``generate`` of an unmodified model: what it gives on the card is what it gives on the host."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tests.models import tiny
from torch_spyre._inductor import config
from torch_spyre.models.buckets import ladder
from torch_spyre.models.hugging_face import padded_prompts

transformers = pytest.importorskip("transformers")

PROMPT = tiny.prompts(1, 11)


@pytest.fixture(scope="module")
def models() -> Iterator[tuple[Any, Any]]:
    yield tiny.decoder("llama"), tiny.decoder("llama").to("spyre", torch.float16)


def _both(models: tuple[Any, Any], prompt: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    host, card = models
    torch.manual_seed(5)
    expected = host.generate(prompt, **options)
    torch.manual_seed(5)
    if "attention_mask" in options:
        options["attention_mask"] = options["attention_mask"].to("spyre")
    with torch.spyre.fallback("error"):
        found = card.generate(prompt.to("spyre"), **options)
    return found, expected


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9},
        {"do_sample": False, "cache_implementation": "dynamic"},
        {"do_sample": False, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "min_new_tokens": 9},
        {"do_sample": False, "num_beams": 3},
        {"do_sample": True, "num_return_sequences": 3},
        pytest.param({"do_sample": False, "use_cache": False}, marks=pytest.mark.slow),  # each length is compiled for
        {"do_sample": False, "prompt_lookup_num_tokens": 3},
        {"do_sample": False, "prefill_chunk_size": 4},
    ],
    ids=["greedy", "sampling", "dynamic", "processors", "beams", "several", "without", "lookup", "chunks"],
)
def test_the_tokens_are_the_hosts(models: tuple[Any, Any], options: dict[str, Any]) -> None:
    found, expected = _both(models, PROMPT, max_new_tokens=10, **options)
    assert found.device.type == "spyre"
    assert torch.equal(found.cpu(), expected)


def test_batches_with_padding(models: tuple[Any, Any]) -> None:
    prompt, mask = tiny.prompts(3, 11), torch.ones(3, 11, dtype=torch.int64)
    for row, missing in enumerate((0, 4, 10)):
        prompt[row, :missing], mask[row, :missing] = 0, 0
    found, expected = _both(models, prompt, attention_mask=mask, max_new_tokens=10, do_sample=False)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("length", [100, 127])
def test_long_prompts(models: tuple[Any, Any], length: int) -> None:
    """The model has 128 positions: the second is padded beyond them."""
    found, expected = _both(models, tiny.prompts(1, length), max_new_tokens=128 - length, do_sample=False)
    assert torch.equal(found.cpu(), expected)


def test_a_prompt_of_a_size_is_not_padded(models: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It shares the program of those that are padded to that size, though its mask masks nothing."""
    added, pad = [], padded_prompts._padded
    monkeypatch.setattr(padded_prompts, "_padded", lambda tokens, count: (added.append(count), pad(tokens, count))[1])
    options = {"max_new_tokens": 3, "do_sample": False, "cache_implementation": "static"}
    _both(models, tiny.prompts(1, 31), **options)
    compiled = counters["spyre"].copy()
    found, expected = _both(models, tiny.prompts(1, 32), **options)
    assert torch.equal(found.cpu(), expected)
    assert counters["spyre"] == compiled
    assert set(added) == {0, 1}


def test_prompts_that_are_no_tokens(models: tuple[Any, Any]) -> None:
    found = []
    for model in models:
        embedded = model.get_input_embeddings()(PROMPT.to(model.device))
        found.append(model.generate(inputs_embeds=embedded, max_new_tokens=6, do_sample=False).cpu())
    assert torch.equal(*found)


@pytest.mark.slow
@pytest.mark.parametrize("do_sample", [False, True])
def test_a_smaller_model_assists(models: tuple[Any, Any], do_sample: bool) -> None:
    found = []
    for model in models:
        smaller = tiny.decoder("llama", seed=3).to(model.device, model.dtype)
        torch.manual_seed(5)
        tokens = model.generate(
            PROMPT.to(model.device), assistant_model=smaller, max_new_tokens=10, do_sample=do_sample
        )
        found.append(tokens.cpu())
    assert torch.equal(*found)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["mistral", "gpt_oss"])
def test_a_static_cache_of_windows_compiles_one_step(name: str) -> None:
    host, card = tiny.decoder(name), tiny.decoder(name).to("spyre", torch.float16)
    expected = host.generate(PROMPT, max_new_tokens=12, do_sample=False)
    cache = transformers.StaticCache(config=card.config, max_cache_len=32)
    torch._dynamo.reset()
    counters.clear()
    with torch.spyre.fallback("error"):  # of 16 tokens: it is full on the way
        found = card.generate(PROMPT.to("spyre"), past_key_values=cache, max_new_tokens=12, do_sample=False)
    assert torch.equal(found.cpu(), expected)
    assert counters["stats"]["unique_graphs"] == 1 and not counters["spyre"]["specializations"]


def test_padding_changes_no_bit(models: tuple[Any, Any]) -> None:
    logits = []
    for granularity in (4, 16, 50):
        with config.patch(min_default_granularity=granularity):
            found = models[1].generate(
                PROMPT.to("spyre"),
                max_new_tokens=6,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            )
        logits.append(torch.cat(found.logits).cpu())
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


def test_a_conversation_goes_on_with_its_cache(models: tuple[Any, Any]) -> None:
    """The cache that comes back holds the tokens of the conversation and nothing else."""
    found = []
    for model in models:
        kwargs = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True}
        first = model.generate(PROMPT.to(model.device), **kwargs)
        assert first.past_key_values.get_seq_length() == 11 + 5
        more = torch.cat([first.sequences, tiny.prompts(1, 3, seed=9).to(model.device)], dim=1)
        found.append(model.generate(more, past_key_values=first.past_key_values, **kwargs).sequences.cpu())
    assert torch.equal(*found)


def test_models_on_the_host_are_left_alone(models: tuple[Any, Any]) -> None:
    found = models[0].generate(PROMPT, max_new_tokens=2, return_dict_in_generate=True)
    assert type(found.past_key_values).__name__ == "DynamicCache"


def test_a_host_prompt_gives_host_tokens(models: tuple[Any, Any]) -> None:
    assert models[1].generate(PROMPT, max_new_tokens=2, do_sample=False).device.type == "cpu"


@pytest.mark.parametrize("longest", [1, 3, 100, 1024, 131072])
def test_ladders(longest: int) -> None:
    sizes = ladder(longest)
    assert len(sizes.sizes) <= 32
    assert all(size % (4 if size <= 64 else 32) == 0 for size in sizes.sizes)
    assert sizes.sizes[-1] == sizes.at_least(longest)
    for length in {1, longest // 2 or 1, min(longest, 65), longest}:
        size = sizes.at_least(length)
        assert size >= length
        assert size - length < max(4, 0.5 * length)
    assert sizes.at_least(longest + 500) >= longest + 500


def test_ladders_follow_their_settings() -> None:
    with config.patch(max_buckets=3, min_default_granularity=64):
        sizes = ladder(1000)
    assert len(sizes.sizes) == 3
    assert all(size % 64 == 0 for size in sizes.sizes)


@pytest.mark.parametrize("name", ["llama", pytest.param("granite_hybrid", marks=pytest.mark.slow)])
def test_states_and_attentions_are_those_of_the_tokens(name):
    """Neither of the padding before a prompt nor of slots that the cache has free."""
    host = tiny.decoder(name).half()
    host.set_attn_implementation("eager")
    card = copy.deepcopy(host).to("spyre")
    host = host.float()
    prompt = tiny.prompts(2, 11)
    options = {"output_attentions": True, "output_hidden_states": True, "return_dict_in_generate": True}
    options |= {"max_new_tokens": 3, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    want, got = host.generate(prompt, **options), card.generate(prompt, **options)
    for kind in ("hidden_states", "attentions"):
        for mine, theirs in zip(got[kind], want[kind], strict=True):
            for x, y in zip(mine, theirs, strict=True):
                assert x.shape == y.shape
                # Of another token it would be off by as much as it is large.
                torch.testing.assert_close(x.cpu().float(), y, rtol=0, atol=0.05 * y.abs().max().item())
