"""What a request may ask for, with the model in the box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torch_spyre.models.files import BOX

pytest.importorskip("vllm")
Serve = Callable[..., dict[str, Any]]
PROMPT = "Upon the quarter-deck, Ahab"
WHALE = {"max_tokens": 16, "detokenize": True, "ignore_eos": False}


@pytest.mark.slow
def test_all_at_once(serve: Serve) -> None:
    """One server, and what each request finds."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(BOX)
    short, long = tokenizer(PROMPT)["input_ids"], tokenizer(" ".join([PROMPT] * 12))["input_ids"]
    asked: list[tuple[str, list[int], dict[str, Any]]] = [
        ("greedy", short, {}),
        ("seeded", short, {"temperature": 1.0, "seed": 7}),
        ("seeded again", short, {"temperature": 1.0, "seed": 7}),
        ("other seed", short, {"temperature": 1.0, "seed": 8}),
        ("two", short, {"temperature": 1.0, "seed": 3, "n": 2}),
        ("penalties", short, {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 1.0}),
        ("cut", short, {"temperature": 0.9, "seed": 1, "top_k": 1, "top_p": 0.5, "min_p": 0.1}),
        ("stopped", short, {"stop": ["mate"]}),
        ("biased", short, {"logit_bias": {"5": 100.0}, "max_tokens": 3}),
        ("logprobs", short, {"logprobs": 3, "prompt_logprobs": 2}),
        ("choice", short, {"structured_outputs": {"choice": ["whale", "ship"]}}),
        ("pattern", short, {"structured_outputs": {"regex": "[a-c]{5}"}}),
        ("in parts", long, {}),
    ]
    found = serve(
        str(BOX), [prompt for _, prompt, _ in asked], [{**WHALE, **each} for _, _, each in asked], max_model_len=256
    )
    text = {name: texts for (name, _, _), texts in zip(asked, found["text"], strict=True)}
    tokens = {name: each for (name, _, _), each in zip(asked, found["tokens"], strict=True)}
    assert text["seeded"] == text["seeded again"] != text["other seed"]
    assert len(text["two"]) == 2 and text["two"][0] != text["two"][1]
    assert text["cut"] == text["greedy"] != text["penalties"]
    assert text["stopped"][0] == text["greedy"][0].split("mate")[0]
    assert tokens["biased"] == [[5, 5, 5]]
    assert text["choice"][0] in ("whale", "ship")
    assert len(text["pattern"][0]) == 5 and set(text["pattern"][0]) <= set("abc")
    at = [name for name, _, _ in asked].index("logprobs")
    assert all(len(each) >= 3 for each in found["logprobs"][at])
    told = found["prompt_logprobs"][at]
    assert told[0] is None and all(str(token) in each for token, each in zip(short[1:], told[1:], strict=True))


@pytest.mark.slow
def test_prefixes_are_kept_and_preempted_requests_go_on(serve: Serve) -> None:
    """With few blocks of the cache, requests wait for each other or begin anew, to the same tokens."""
    from .expected import prompts

    given = prompts(100, 100, 90, 80, 70, 60)
    options = {"sampling": {"max_tokens": 60, "ignore_eos": True}, "max_model_len": 256}
    plenty = serve(str(BOX), given, **options)
    scarce = serve(str(BOX), given, num_gpu_blocks_override=8, **options)
    assert plenty["tokens"] == scarce["tokens"]
    assert plenty["cached"][1] == 64  # of the same prompt, the whole blocks but for its last token
    assert scarce["preemptions"] > 0


@pytest.mark.slow
def test_speculating_with_ngrams_changes_no_token(serve: Serve) -> None:
    from .expected import prompts

    given = [each * 3 for each in prompts(20, 12, 30)]
    options = {"sampling": {"max_tokens": 24, "ignore_eos": True}, "max_model_len": 256}
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    plain, speculated = (
        serve(str(BOX), given, **options),
        serve(str(BOX), given, speculative_config=speculation, **options),
    )
    assert plain["tokens"] == speculated["tokens"]
    assert speculated["accepted"] > 0
