"""Every architecture of Hugging Face that users come with, small, against the host's fp32: eager and compiled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tests.models import format_error, tiny

NEW_TOKENS = 64


def _each(quick: str) -> list[Any]:
    return [name if name == quick else pytest.param(name, marks=pytest.mark.slow) for name in tiny.DECODERS]


def _continue(model: Any, given: torch.Tensor, sequence: torch.Tensor, **options: Any) -> torch.Tensor:
    """The logits of steps on the card, which goes on with the host's tokens whatever it would choose."""
    counters.clear()
    with torch.spyre.fallback("error"):
        found = model.to("spyre", torch.float16).generate(
            given.to("spyre", torch.float16 if given.is_floating_point() else None),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            prefix_allowed_tokens_fn=lambda _, ids: [int(sequence[0, len(ids)])],
            output_logits=True,
            return_dict_in_generate=True,
            **options,
        )
    assert torch.equal(found.sequences.cpu(), sequence)
    assert not counters["graph_break"]
    return torch.cat(found.logits).cpu()


def _teacher_forced(name: str, **options: Any) -> None:
    """At each step the logits are the host's within format error, and so is the choice."""
    model, prompt = tiny.decoder(name), tiny.prompts(1, 8)
    tokens = model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False)

    def logits(model: Any) -> torch.Tensor:
        return model(tokens[:, :-1]).logits[0, prompt.shape[1] - 1 :]

    allowed = format_error.derive(model, logits)
    steps = _continue(model, prompt, tokens, **options)
    allowed.check(steps)
    allowed.check_choice(steps.argmax(-1))


@pytest.mark.parametrize("name", _each("llama"))
def test_64_tokens_eagerly(name: str) -> None:
    _teacher_forced(name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", tiny.DECODERS)
def test_64_tokens_compiled(name: str) -> None:
    torch._dynamo.reset()
    _teacher_forced(name, cache_implementation="static")
    assert counters["stats"]["unique_graphs"] == 2  # a prompt, and a step with a cache of any size


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lengths_are_fixed_until_there_are_several() -> None:
    """A fixed length takes half as long to trace; a call that is known to bring several has steps of any at once."""
    torch._dynamo.reset()
    counters.clear()
    model = tiny.decoder("llama").to("spyre", torch.float16)

    def traced(length: int, new_tokens: int) -> tuple[int, int]:
        model.generate(
            tiny.prompts(1, length), max_new_tokens=new_tokens, do_sample=False, cache_implementation="static"
        )
        return counters["stats"]["unique_graphs"], counters["spyre"]["specializations"]

    assert traced(9, 4) == (2, 0)  # a prompt of 12 and steps with 16 slots
    assert traced(10, 3) == (2, 0)
    assert traced(9, 8) == (3, 2)  # steps with 16 and 20
    assert traced(14, 3) == (4, 3)  # a prompt of 16; its steps have 20


def _encoder(model: Any, inputs: dict[str, torch.Tensor], compiled: bool) -> None:
    def run(model: Any) -> torch.Tensor:
        kind = next(model.parameters())
        given = {name: x.to(kind.device, kind.dtype if x.is_floating_point() else None) for name, x in inputs.items()}
        found = model(**given)
        return found["logits" if "logits" in found else "last_hidden_state"].flatten(0, -2)

    with torch.no_grad():
        allowed = format_error.derive(model, run)
        model = copy.deepcopy(model).to("spyre", torch.float16)
        if compiled:
            torch._dynamo.reset()
            model.forward = torch.compile(model.forward, fullgraph=True)
        with torch.spyre.fallback("error"):
            found = run(model)
    allowed.check(found.cpu())


_COMPILED = [False, pytest.param(True, marks=pytest.mark.slow)]


@pytest.mark.parametrize("compiled", _COMPILED)
def test_embeddings_of_padded_sentences(compiled: bool) -> None:
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 7:] = 0
    _encoder(tiny.bert(), {"input_ids": tiny.prompts(2, 12), "attention_mask": mask}, compiled)


@pytest.mark.parametrize("compiled", _COMPILED)
def test_vision_transformer(compiled: bool) -> None:
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    _encoder(tiny.vit(), {"pixel_values": images}, compiled)


@pytest.mark.parametrize("compiled", _COMPILED)
def test_encoder_and_decoder(compiled: bool) -> None:
    sound = torch.randn(2, 80, 100, generator=torch.Generator().manual_seed(1))
    _encoder(tiny.whisper(), {"input_features": sound, "decoder_input_ids": tiny.prompts(2, 20)}, compiled)


_CACHES = [{}, pytest.param({"cache_implementation": "static"}, marks=pytest.mark.slow)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("compiled", [False, True])
def test_64_tokens_heard(compiled: bool) -> None:
    torch._dynamo.reset()
    model = tiny.whisper()
    sound = torch.randn(1, 80, 100, generator=torch.Generator().manual_seed(1))
    tokens = model.generate(sound, max_new_tokens=NEW_TOKENS, do_sample=False)
    sequence = torch.nn.functional.pad(tokens, (1, 0), value=model.config.decoder_start_token_id)

    def logits(model: Any) -> torch.Tensor:
        return model(sound.to(model.dtype), decoder_input_ids=sequence[:, :-1]).logits[0]

    allowed = format_error.derive(model, logits)
    steps = _continue(model, sound, sequence, **({"cache_implementation": "static"} if compiled else {}))
    allowed.check(steps)
    allowed.check_choice(steps.argmax(-1))
    assert counters["stats"]["unique_graphs"] == compiled  # a step; the first token comes with the encoder


@pytest.mark.parametrize("options", _CACHES, ids=["eagerly", "compiled"])
def test_transcription_runs_on_the_card_alone(options: dict[str, Any]) -> None:
    model = tiny.whisper()
    sound = torch.randn(2, 80, 100, generator=torch.Generator().manual_seed(1))
    expected = model.generate(sound, max_new_tokens=12, do_sample=False)
    model.to("spyre", torch.float16)
    with torch.spyre.fallback("error"):
        found = model.generate(sound.to("spyre", torch.float16), max_new_tokens=12, do_sample=False, **options)
    assert found.device.type == "spyre"
    assert torch.equal(found.cpu(), expected)


def test_a_wrong_layer_is_no_format_error() -> None:
    model, tokens = tiny.decoder("llama"), tiny.prompts(1, 24)

    def logits(model: Any) -> torch.Tensor:
        return model(tokens).logits[0]

    with torch.no_grad():
        allowed = format_error.derive(model, logits)
        allowed.check(logits(model).half())
        model.model.layers[1].mlp.down_proj.weight.mul_(1.05)
        with pytest.raises(AssertionError):
            allowed.check(logits(model))


@pytest.mark.parametrize("tokens", [1, 40], ids=["gathered", "every expert"])
def test_experts_are_those_of_the_host(tokens: int) -> None:
    layer = tiny.decoder("gpt_oss").model.layers[0].mlp.experts
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(tokens, layer.hidden_size, generator=generator)
    weights, indices = torch.randn(tokens, 8, generator=generator).softmax(-1).topk(2)
    with torch.no_grad(), torch.spyre.fallback("error"):
        expected = layer(x, indices, weights)
        found = layer.to("spyre")(x.to("spyre"), indices.to("spyre"), weights.to("spyre"))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
