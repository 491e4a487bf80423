"""Which cache ``generate`` uses is shown by the model: buckets where they change nothing, else the package's own."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch

from torch_spyre.models.hugging_face import cache_fitness

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {"vocab_size": 120, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
LLAMA = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}


def _model(kind: str, **sizes: Any) -> Any:
    """With weights large enough that attention decides which token comes next."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES | sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    return model


def _gpt_neo(window: int) -> Any:
    layers = {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": window}
    return _model("GPTNeo", hidden_size=32, num_heads=2, max_position_embeddings=128, **layers)


def _write(model: Any, length: int, count: int = 8, **options: Any) -> Any:
    prompt = torch.randint(3, 100, (1, length), generator=torch.Generator().manual_seed(4))
    options |= {"max_new_tokens": count, "do_sample": False, "return_dict_in_generate": True}
    return model.generate(prompt, **options)


def _both(model: Any, length: int, **options: Any) -> tuple[Any, str]:
    """The tokens have to be the host's; returns the cache that was used, and what was logged."""
    card = copy.deepcopy(model).to("spyre")
    expected, found = _write(model, length, **options), _write(card, length, **options)
    assert torch.equal(found.sequences, expected.sequences)
    return card, type(found.past_key_values).__name__


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: _gpt_neo(16), id="windows that end with the slots"),
        pytest.param(lambda: _model("Bloom", hidden_size=32, n_layer=1, n_head=2), id="biases by the mask"),
        pytest.param(
            lambda: _model("Falcon", hidden_size=32, num_hidden_layers=1, num_attention_heads=2, alibi=True),
            id="biases by position",
        ),
        pytest.param(
            lambda: _model("Moshi", sliding_window=8, **LLAMA | {"ffn_dim": 64}), id="windows that only a cache has"
        ),
        pytest.param(
            lambda: _model("Bert", **LLAMA | {"num_hidden_layers": 1}), id="prompts that look at what comes after"
        ),
    ],
)
def test_models_that_depend_on_slots_have_the_dynamic_cache(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torch_spyre"):
        card, cache = _both(model(), 21)
        _write(card, 19)
    assert cache == "DynamicCache"
    assert [record.name for record in caplog.records].count(cache_fitness.__name__) == 1


def test_a_static_cache_is_no_way_round() -> None:
    card = _gpt_neo(16).to("spyre")
    found = _write(card, 21, cache_implementation="static")
    assert type(found.past_key_values).__name__ == "DynamicCache"


def test_what_was_shown_for_few_slots_is_shown_again_for_more() -> None:
    """As long as all slots fit into a window of 64, it does not matter where it ends."""
    model = _gpt_neo(64)
    card, cache = _both(model, 21)
    assert cache == "BucketedCache"
    found, expected = _write(card, 90, count=4), _write(model, 90, count=4)
    assert type(found.past_key_values).__name__ == "DynamicCache"
    assert torch.equal(found.sequences, expected.sequences)


@pytest.mark.parametrize("kind", ["Llama", "Mistral"])
def test_models_that_do_not_keep_the_buckets(kind: str) -> None:
    window = {"sliding_window": 16} if kind == "Mistral" else {}
    _, cache = _both(_model(kind, num_key_value_heads=1, **LLAMA, **window), 21)
    assert cache == "BucketedCache"


class Blind(transformers.LlamaForCausalLM):
    """Nobody knows its name."""

    def forward(self, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


def test_a_model_of_ones_own_that_ignores_masks_is_found_out() -> None:
    model = _model("Llama", **LLAMA)
    model.__class__ = Blind
    _, cache = _both(model, 21)
    assert cache == "DynamicCache"


def test_it_is_asked_once_and_does_not_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ask = [], cache_fitness._why_not
    monkeypatch.setattr(cache_fitness, "_why_not", lambda *given: (asked.append(1), ask(*given))[1])
    card = _model("Llama", **LLAMA).to("spyre").train()  # which an outline is not
    seen = []
    card.model.layers[0].register_forward_hook(lambda *_: seen.append(1))
    drawn = torch.get_rng_state()
    for _ in range(2):
        card.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False)
    assert len(asked) == 1
    assert len(seen) == 8
    assert torch.equal(torch.get_rng_state(), drawn)
    assert card.training and len(card.model.layers) == 3


def test_layers_that_are_alike_are_tried_once() -> None:
    outline = cache_fitness._outline(_model("Llama", **LLAMA | {"num_hidden_layers": 5}))
    assert len(outline.model.layers) == 1
    outline = cache_fitness._outline(_gpt_neo(16))
    assert len(outline.transformer.h) == 2  # one with a window, one without
