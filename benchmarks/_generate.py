"""A Llama of about 300 million parameters through ``generate``; as a program, the seconds that compiling it takes."""

import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

PROMPT, NEW_TOKENS, ROUNDS = 512, 16, 3
WAYS = ("spyre", "fp32 Inductor", "fp32 eager")


@dataclass(frozen=True)
class Times:
    """Seconds until the first token, and of the fastest step after it."""

    prefill: float
    step: float


def build(way: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=2048,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    if way == "spyre":
        return model.to(torch.float16).to("spyre")
    if way == "fp32 Inductor":
        model.forward = torch.compile(model.forward, dynamic=False)
    return model


def weight_bytes(model: Any) -> int:
    """Of those that take part in every token; of the table of embeddings a row does."""
    table = model.get_input_embeddings().weight
    return sum(one.numel() * one.itemsize for one in model.parameters() if one is not table)


def generate(model: Any, way: str, prompt: torch.Tensor, new_tokens: int = NEW_TOKENS) -> Times:
    moments = [time.perf_counter()]

    def clock(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        moments.append(time.perf_counter())
        return logits

    options = {} if way == "fp32 eager" else {"cache_implementation": "static"}
    model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=new_tokens,
        do_sample=False,
        logits_processor=[clock],
        pad_token_id=0,
        **options,
    )
    steps = [after - before for before, after in zip(moments[1:], moments[2:], strict=False)]
    return Times(moments[1] - moments[0], min(steps))


def main(way: str) -> None:
    import torch._inductor.compile_fx  # torch.compile does, which one side calls in `build` and the other in `generate`

    model, prompt = build(way), torch.randint(1000, (1, PROMPT))
    moments = [time.perf_counter()]
    for _ in range(2):
        generate(model, way, prompt, 3)
        moments.append(time.perf_counter())
    print((moments[1] - moments[0]) - (moments[2] - moments[1]))


if __name__ == "__main__":
    main(sys.argv[1])
