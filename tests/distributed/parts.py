"""Models in parts, and what they take: for ranks of tests."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

SIZES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"head_dim": 32},
    "granite": {"tie_word_embeddings": True},
    "gpt_oss": {
        "head_dim": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
    },
    "granitemoehybrid": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 128,
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 8,
        "mamba_d_head": 32,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 16,
    },
}
VOCABULARY = 1003  # which no number of cards divides


def configuration(kind: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(
        kind,
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        **SIZES.get(kind, {}),
    )


def model(kind: str) -> Any:
    """Whole, on the host, the same on all ranks."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(configuration(kind), dtype=torch.float16).eval().requires_grad_(False)


def part(kind: str) -> Any:
    from torch_spyre.model_utils import load_model_to_spyre
    from torch_spyre.models.tensor_parallel import place_in_world, shard

    whole = model(kind)
    shard(whole, place_in_world())
    return load_model_to_spyre(whole, dtype=torch.float16)


@torch.no_grad()
def forward_time(kind: str, compiled: bool) -> tuple[float, float]:
    """Modelled milliseconds of a prompt, and how many of them went by in waiting for others."""
    torch._dynamo.reset()
    mine = part(kind)
    forward = torch.compile(mine.forward, dynamic=False) if compiled else mine.forward
    ids = torch.zeros(1, 32, dtype=torch.int64, device="spyre")
    forward(input_ids=ids, use_cache=False)
    dist.barrier()  # the ranks have compiled at times of their own, which no clock knows
    stream = torch.spyre.current_stream()
    before = stream.modelled_time(), stream.communication_time()
    forward(input_ids=ids, use_cache=False)
    return round(stream.modelled_time() - before[0], 9), round(stream.communication_time() - before[1], 9)


@torch.no_grad()
def logits(kind: str) -> torch.Tensor:
    ids = torch.arange(32).reshape(1, 32).to("spyre")
    return part(kind)(input_ids=ids, use_cache=False).logits.cpu()


@torch.no_grad()
def whole_logits(kind: str) -> torch.Tensor:
    from torch_spyre.model_utils import load_model_to_spyre

    ids = torch.arange(32).reshape(1, 32).to("spyre")
    return load_model_to_spyre(model(kind), dtype=torch.float16)(input_ids=ids, use_cache=False).logits.cpu()


def collectives() -> float:
    """Modelled nanoseconds of a few, the host between them at times of its own."""
    size, rank = dist.get_world_size(), dist.get_rank()
    stream = torch.spyre.current_stream()
    dist.barrier()
    before = stream.modelled_time()
    for length in (1, 100, 4096, 1_000_003):
        x = torch.zeros(length, dtype=torch.float16, device="spyre") + 1
        dist.all_reduce(x)
        dist.broadcast(x, 1)
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, x)
        dist.reduce(x, 0)
        if length % size == 0:
            dist.all_to_all_single(torch.empty_like(x), x)
            dist.reduce_scatter_tensor(x[: length // size].clone(), x)
    works = [dist.all_reduce(torch.zeros(500, device="spyre"), async_op=True) for _ in range(3)]
    y = torch.zeros(64, 64, dtype=torch.float16, device="spyre")
    for _ in range(20):
        y = y @ y
    for work in works:
        work.wait()
    assert rank < size
    return round((stream.modelled_time() - before) * 1e6, 3)


def message() -> None:
    dist.send(torch.zeros(3, device="spyre"), 1)
