"""Runs requests through vLLM in a process of its own: a JSON object on standard input, one on standard output."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any


def main() -> None:
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        run = embed if asked["options"].get("runner") == "pooling" else generate
        answer = run(asked["model"], asked["prompts"], asked["sampling"], asked["options"])
    json.dump(answer, sys.stdout)


def generate(
    model: str, prompts: list[list[int]], sampling: list[dict[str, Any]], options: dict[str, Any]
) -> dict[str, Any]:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import torch

    torch.spyre.fallback("error")
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import StructuredOutputsParams

    for each in sampling:
        if "structured_outputs" in each:
            each["structured_outputs"] = StructuredOutputsParams(**each["structured_outputs"])
        if "logit_bias" in each:
            each["logit_bias"] = {int(token): bias for token, bias in each["logit_bias"].items()}
    llm = LLM(model, **{"seed": 0, **options})
    paths = [each.pop("adapter", None) for each in sampling]
    adapters = [path and LoRARequest(path, number, path) for number, path in enumerate(paths, 1)]
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        [SamplingParams(**each) for each in sampling],
        lora_request=adapters if any(adapters) else None,
    )
    counts = {} if options.get("disable_log_stats", True) else {m.name: m for m in llm.get_metrics()}
    return {
        "preemptions": _value(counts, "vllm:num_preemptions"),
        "accepted": _value(counts, "vllm:spec_decode_num_accepted_tokens"),
        "tokens": [[list(each.token_ids) for each in output.outputs] for output in outputs],
        "text": [[each.text for each in output.outputs] for output in outputs],
        "logprobs": [_logprobs(output.outputs[0].logprobs) for output in outputs],
        "prompt_logprobs": [_logprobs(output.prompt_logprobs) for output in outputs],
        "cached": [output.num_cached_tokens for output in outputs],
    }


def embed(
    model: str, prompts: list[list[int]], sampling: list[dict[str, Any]], options: dict[str, Any]
) -> dict[str, Any]:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import torch

    torch.spyre.fallback("error")
    from vllm import LLM

    llm = LLM(model, **{"seed": 0, **options})
    return {"embedded": [each.outputs.embedding for each in llm.embed([{"prompt_token_ids": p} for p in prompts])]}


def _value(counts: dict[str, Any], name: str) -> int:
    return counts[name].value if name in counts else 0


def _logprobs(positions: Any) -> Any:
    """For each position the tokens that vLLM tells of, with logarithms of their probabilities."""
    if positions is None:
        return None
    return [each and {str(token): found.logprob for token, found in each.items()} for each in positions]


if __name__ == "__main__":
    main()
