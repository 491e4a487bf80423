"""What vLLM does with Triton kernels on the host's side of a step, without Triton; by vLLM's names of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_table_stride: int,
    slots: torch.Tensor,
    KV_CACHE_BLOCK_SIZE: int,
    TOTAL_CP_WORLD_SIZE: int,
    TOTAL_CP_RANK: int,
    CP_KV_CACHE_INTERLEAVE_SIZE: int,
    PAD_ID: int,
    BLOCK_SIZE: int,
) -> None:
    """The slot of the cache that each token's key goes to."""
    if TOTAL_CP_WORLD_SIZE != 1:
        raise NotImplementedError("Context parallelism does not run on the card")
    starts = query_start_loc.numpy()
    count = int(starts[-1])
    rows = torch.from_numpy(starts[1:] - starts[:-1]).long()
    requests = torch.repeat_interleave(torch.arange(len(rows)), rows)
    at = positions[:count]
    blocks = block_table.view(-1)[requests * block_table_stride + at // KV_CACHE_BLOCK_SIZE]
    slots[:count] = blocks * KV_CACHE_BLOCK_SIZE + at % KV_CACHE_BLOCK_SIZE
    slots[count:max_num_tokens] = PAD_ID


KERNELS: dict[str, Callable[..., Any]] = {
    "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel": slot_mapping,
}
