"""``torch.ops.spyre.paged_attention`` on the card, written with other ops: all pages are gathered, and masked."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..ops.paged_attention import check, check_numbers


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    scale: float,
    *,
    causal: bool = True,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> Tensor:
    check(query, key_cache, value_cache, block_table, query_starts, lengths, sinks, alibi_slopes)
    check_numbers(query, block_table, key_cache, query_starts, lengths)
    tokens, heads, _ = query.shape
    requests, pages = block_table.shape
    page, group = key_cache.size(1), heads // key_cache.size(2)
    most = pages * page
    distance = torch.full((tokens, requests, most), math.inf)
    for r, (begin, end) in enumerate(zip(query_starts.tolist(), query_starts.tolist()[1:], strict=False)):
        length = int(lengths[r])
        at = torch.arange(length - (end - begin), length)[:, None]
        distance[begin:end, r, :length] = (torch.arange(length)[None] - at).float()
    seen = distance <= (0 if causal else most)
    if window:
        seen &= distance > -window
    distance = distance.masked_fill(~seen, 0).flatten(1).to(query.device)
    used = (torch.arange(pages)[None] < (lengths[:, None] + page - 1) // page).to(block_table.dtype)
    chosen = (block_table * used.to(query.device)).flatten()
    keys, values = (
        cache.index_select(0, chosen).flatten(0, 1).float().repeat_interleave(group, 1).transpose(0, 1) * factor
        for cache, factor in ((key_cache, k_scale), (value_cache, v_scale))
    )
    scores = (query.float() * scale).transpose(0, 1) @ keys.transpose(1, 2)
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    if alibi_slopes is not None:
        scores = scores + alibi_slopes.float()[:, None, None] * distance
    scores = torch.where(seen.flatten(1).to(query.device), scores, -math.inf)
    top = scores.amax(-1, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks.float()[:, None, None])
    top = torch.where(top == -math.inf, 0.0, top)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks.float()[:, None, None] - top)
    result = (weights @ values) / torch.where(total == 0, 1.0, total)
    return result.transpose(0, 1).to(query.dtype).contiguous()
