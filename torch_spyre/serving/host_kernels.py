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


def accept_likeliest(
    output: torch.Tensor,
    ends: torch.Tensor,
    drafts: torch.Tensor,
    likeliest: torch.Tensor,
    bonus: torch.Tensor,
    greedy: torch.Tensor | None,
    longest: int,
    chances: torch.Tensor | None,
    rates: torch.Tensor | None,
    synthetic: bool,
) -> None:
    """Of each greedy request, drafts up to the first that is not the likeliest token, which takes its place."""
    _refuse_synthetic(synthetic)
    for request, (begin, end) in enumerate(_ranges(ends)):
        if greedy is None or greedy[request]:
            wrong = (drafts[begin:end] != likeliest[begin:end]).nonzero()
            count = end - begin if len(wrong) == 0 else int(wrong[0]) + 1
            output[request, :count] = likeliest[begin : begin + count].to(output.dtype)
            if len(wrong) == 0:
                output[request, count] = bonus.view(-1)[request]


def accept_by_chance(
    output: torch.Tensor,
    ends: torch.Tensor,
    drafts: torch.Tensor,
    draft_probabilities: torch.Tensor | None,
    probabilities: torch.Tensor,
    bonus: torch.Tensor,
    recovered: torch.Tensor,
    chances: torch.Tensor,
    greedy: torch.Tensor,
    longest: int,
    vocabulary: int,
    rates: torch.Tensor | None,
    certain: bool,
    synthetic: bool,
) -> None:
    """Of each request that samples, drafts for as long as chance has it; then another token in the place of one."""
    _refuse_synthetic(synthetic)
    for request, (begin, end) in enumerate(_ranges(ends)):
        if greedy[request]:
            continue
        for at in range(begin, end):
            draft = int(drafts[at])
            guessed = 1.0 if certain or draft_probabilities is None else float(draft_probabilities[at, draft])
            if draft < 0 or guessed <= 0 or float(probabilities[at, draft]) / guessed < float(chances[at]):
                output[request, at - begin] = recovered[at]
                break
            output[request, at - begin] = draft
        else:
            output[request, end - begin] = bonus.view(-1)[request]


def recover(
    output: torch.Tensor,
    ends: torch.Tensor,
    drafts: torch.Tensor,
    draft_probabilities: torch.Tensor | None,
    probabilities: torch.Tensor,
    scale: torch.Tensor,
    vocabulary: int,
    tile: int,
    certain: bool,
    wide: bool,
) -> None:
    """For each draft the token to sample if it is not accepted, from what its probability leaves to the others."""
    for request, (begin, end) in enumerate(_ranges(ends)):
        for at in range(begin, end):
            left = probabilities[at].clone()
            if certain or draft_probabilities is None:
                left[int(drafts[at])] = 0
            else:
                left = (left - draft_probabilities[at]).clamp(min=0)
            output[at] = (left * scale[request]).argmax()


def expand(output: torch.Tensor, given: torch.Tensor, ends: torch.Tensor, old: float, new: float, longest: int) -> None:
    """A value of each request for each of its tokens, with ``new`` where it was ``old``."""
    values = torch.where(given == old, torch.tensor(new, dtype=given.dtype), given)
    counts = torch.tensor([end - begin for begin, end in _ranges(ends)])
    output[: int(ends[-1])] = torch.repeat_interleave(values, counts).to(output.dtype)


def _ranges(ends: torch.Tensor) -> list[tuple[int, int]]:
    found: list[int] = ends.tolist()
    return list(zip([0, *found[:-1]], found, strict=True))


def _refuse_synthetic(synthetic: bool) -> None:
    if synthetic:
        raise NotImplementedError("Drafts that are accepted at made-up rates do not exist on the card")


KERNELS: dict[str, Callable[..., Any]] = {
    "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel": slot_mapping,
    "vllm.v1.sample.rejection_sampler.rejection_greedy_sample_kernel": accept_likeliest,
    "vllm.v1.sample.rejection_sampler.rejection_random_sample_kernel": accept_by_chance,
    "vllm.v1.sample.rejection_sampler.sample_recovered_tokens_kernel": recover,
    "vllm.v1.sample.rejection_sampler.expand_kernel": expand,
}
