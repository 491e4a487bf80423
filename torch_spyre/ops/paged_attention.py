"""``torch.ops.spyre.paged_attention``: attention of several requests over a cache of keys and values in pages.

::

    paged_attention(query, key_cache, value_cache, block_table, query_starts, lengths, scale, *, causal=True,
                    window=0, soft_cap=0.0, sinks=None, alibi_slopes=None, k_scale=1.0, v_scale=1.0) -> Tensor

| argument | what |
|---|---|
| ``query`` | [tokens, heads, head]: the queries of all requests, one request behind the other |
| ``key_cache``, ``value_cache`` | [pages, page, key heads, head]: the cache |
| ``block_table`` | [requests, most pages], int32 or int64 on the card: the pages of each request, in order |
| ``query_starts`` | [requests + 1], int32 or int64 **on the host**: where each request begins, and the end |
| ``lengths`` | [requests], the same: how many keys each request has, those of its queries included |
| ``causal`` | query i of n attends to the first ``length - n + 1 + i`` keys; otherwise to all of them |
| ``window`` | and to the last ``window`` of these alone; 0: no window |
| ``soft_cap`` | a score s becomes ``soft_cap * tanh(s / soft_cap)``; 0: it stays |
| ``sinks`` | [heads], a score that each row has besides those of its keys, and that no value belongs to |
| ``alibi_slopes`` | [heads]: ``slope * (position of the key - position of the query)`` is added to a score |
| ``k_scale``, ``v_scale`` | what the elements of the caches are multiplied by |

Heads of queries share heads of keys in equal groups. A request may have no queries. Rows that belong to no request are
0, and so are those that attend to nothing. Entries of the table behind a request's pages are not read.

What is on the host is no shape: its values are numbers of the launch, and one kernel serves all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_library = torch.library.Library("spyre", "FRAGMENT")
# Of a step of the card: numbers before those of requests, and its loop over requests.
FIXED_NUMBERS, REQUEST_LOOP = 5, 4
_INTEGERS = (torch.int32, torch.int64)
NAME = "paged_attention"
SCHEMA = (
    f"{NAME}(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor query_starts, "
    "Tensor lengths, float scale, *, bool causal=True, int window=0, float soft_cap=0.0, Tensor? sinks=None, "
    "Tensor? alibi_slopes=None, float k_scale=1.0, float v_scale=1.0) -> Tensor"
)


def reference(
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
    """What it computes, on the CPU: fp32 inside (fp64 for fp64), rounded once."""
    check(query, key_cache, value_cache, block_table, query_starts, lengths, sinks, alibi_slopes)
    check_numbers(query, block_table, key_cache, query_starts, lengths)
    wide = torch.promote_types(query.dtype, torch.float32)
    rows: list[Tensor] = []
    page, heads = key_cache.size(1), query.size(1)
    group = heads // max(key_cache.size(2), 1)
    for request, (begin, end) in enumerate(zip(query_starts.tolist(), query_starts.tolist()[1:], strict=False)):
        length = int(lengths[request])
        if begin == end:
            continue
        pages = block_table[request, : -(-length // page)].long()
        keys, values = (
            cache[pages].flatten(0, 1)[:length].to(wide).repeat_interleave(group, 1) * factor
            for cache, factor in ((key_cache, k_scale), (value_cache, v_scale))
        )
        scores = torch.einsum("qhd,khd->hqk", query[begin:end].to(wide) * scale, keys)
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        at = torch.arange(length - (end - begin), length)[:, None]  # positions of the queries
        distance = torch.arange(length)[None] - at
        if alibi_slopes is not None:
            scores = scores + alibi_slopes.to(wide)[:, None, None] * distance
        seen = torch.ones(distance.shape, dtype=torch.bool)
        if causal:
            seen &= distance <= 0
        if window:
            seen &= distance > -window
        scores = scores.masked_fill(~seen, -math.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.to(wide)[:, None, None].expand(-1, end - begin, 1)], -1)
        alone = (scores == -math.inf).all(-1, keepdim=True)
        weights = scores.masked_fill(alone, 0.0).softmax(-1).masked_fill(alone, 0.0)[..., :length]
        rows.append(torch.einsum("hqk,khd->qhd", weights, values))
    left = query.size(0) - sum(each.size(0) for each in rows)
    rows.append(torch.zeros((left, heads, value_cache.size(-1)), dtype=wide))
    return torch.cat(rows).to(query.dtype)


def of_step(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    sinks: Tensor | float,
    slopes: Tensor | float,
    *numbers: float,
) -> Tensor:
    """What a step of the card computes, of tensors as :func:`reference` has them: scale, causal, window, cap, factor,
    then where the queries of requests begin and the last end, then how many keys they have."""
    scale, causal, window, cap, factor, *rest = numbers
    starts, lengths = rest[: table.size(0) + 1], rest[table.size(0) + 1 :]
    return reference(
        query,
        keys,
        values,
        table,
        torch.tensor(starts).long(),
        torch.tensor(lengths).long(),
        scale,
        causal=bool(causal),
        window=int(window),
        soft_cap=cap,
        sinks=sinks if isinstance(sinks, Tensor) else None,
        alibi_slopes=slopes if isinstance(slopes, Tensor) else None,
        v_scale=factor,
    )


def check(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    sinks: Tensor | None,
    alibi_slopes: Tensor | None,
) -> None:
    """Raises where shapes or dtypes do not fit together."""

    def needs(holds: bool, what: str) -> None:
        if not holds:
            raise ValueError(f"paged_attention: {what}")

    needs(query.dim() == 3, f"query is [tokens, heads, head], not {list(query.shape)}")
    needs(query.is_floating_point(), f"query holds real numbers, not {query.dtype}")
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        needs(cache.dim() == 4, f"{name} is [pages, page, key heads, head], not {list(cache.shape)}")
    needs(
        key_cache.shape[:3] == value_cache.shape[:3],
        f"key_cache {list(key_cache.shape)} and value_cache {list(value_cache.shape)} differ in more than the head",
    )
    needs(
        key_cache.size(3) == query.size(2),
        f"heads of keys have {key_cache.size(3)} elements, those of queries {query.size(2)}",
    )
    heads = key_cache.size(2)
    needs(
        heads > 0 and query.size(1) % heads == 0,
        f"{heads} heads of keys do not divide {query.size(1)} heads of queries",
    )
    needs(
        block_table.dim() == 2 and block_table.dtype in _INTEGERS,
        f"block_table is [requests, pages] of int32 or int64, not {block_table.dtype}{list(block_table.shape)}",
    )
    requests = block_table.size(0)
    for name, numbers, count in (("query_starts", query_starts, requests + 1), ("lengths", lengths, requests)):
        needs(
            tuple(numbers.shape) == (count,) and numbers.dtype in _INTEGERS,
            f"{name} has {count} elements of int32 or int64 for a table of {requests} requests, not "
            f"{numbers.dtype}{list(numbers.shape)}",
        )
        needs(
            numbers.device.type in ("cpu", "meta"),
            f"{name} is on {numbers.device}: it holds numbers that the host knows, give it on the CPU",
        )
    for name, each in (("sinks", sinks), ("alibi_slopes", alibi_slopes)):
        needs(
            each is None or tuple(each.shape) == (query.size(1),),
            f"{name} has one element for each of {query.size(1)} heads",
        )


def check_numbers(query: Tensor, block_table: Tensor, key_cache: Tensor, starts: Tensor, lengths: Tensor) -> None:
    """Raises where the numbers of a call do not fit its tensors."""
    first, counts = starts.tolist(), lengths.tolist()
    if first[0] != 0 or first[-1] > query.size(0) or any(a > b for a, b in zip(first, first[1:], strict=False)):
        raise ValueError(
            f"paged_attention: query_starts begins with 0, does not fall and stays within {query.size(0)} tokens: "
            f"{first}"
        )
    most = block_table.size(1) * key_cache.size(1)
    for request, (length, begin, end) in enumerate(zip(counts, first, first[1:], strict=False)):
        if not end - begin <= length <= most:
            raise ValueError(
                f"paged_attention: request {request} has {end - begin} queries and {length} keys; it needs a key for "
                f"each query, and {block_table.size(1)} pages of {key_cache.size(1)} hold {most}"
            )


def _shape(query: Tensor, key_cache: Tensor, value_cache: Tensor, *rest: Tensor, **named: object) -> Tensor:
    return query.new_empty((query.size(0), query.size(1), value_cache.size(-1)))


def on_card(kernel: Callable[..., Tensor]) -> None:
    """Gives the op its kernel for tensors on the card."""
    _library.impl(NAME, kernel, "PrivateUse1")


_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
_library.impl(NAME, reference, "CPU")
torch.library.register_fake(f"spyre::{NAME}", _shape, lib=_library)
