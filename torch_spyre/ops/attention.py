"""Scaled dot product attention on the card: fp32 inside, rounded once at the end.

It is one op of the card. Where a gradient is needed, which that op has none of, it is written with others. PyTorch's
form for devices without a kernel scales queries and keys, and looks for rows without a single key in three more passes
over all scores. Here scores are touched as little as possible: queries are scaled, and sums divide what was attended
to, which is smaller.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

_library = torch.library.Library("aten", "IMPL")


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """What ``torch.nn.functional.scaled_dot_product_attention`` does for tensors on the card."""
    from .._inductor import config

    _check(query, key, value, attn_mask)
    if is_causal and attn_mask is not None:
        raise RuntimeError("scaled_dot_product_attention: attn_mask and is_causal=True exclude each other")
    if dropout_p or config.planning == "op_by_op":
        how = torch.ops.aten._scaled_dot_product_attention_math.default
        given = {"scale": scale, "enable_gqa": enable_gqa}
        return how(query, key, value, attn_mask, dropout_p, is_causal, None, **given)[0]
    factor = max(query.size(-1), 1) ** -0.5 if scale is None else scale
    if _is_one_op(query, key, value, attn_mask, enable_gqa):
        return torch.ops.spyre.attention(query, key, value, attn_mask, is_causal, factor)
    return written_out(query, key, value, attn_mask, is_causal, factor, enable_gqa)


def written_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    factor: float,
    enable_gqa: bool,
) -> torch.Tensor:
    """The same with ops that have gradients."""
    if enable_gqa:
        key, value = (_for_each_query_head(each, query.size(-3)) for each in (key, value))
    if key.size(-2) == 0:
        return query.new_zeros((*query.shape[:-1], value.size(-1)))
    scores = (query.float() * factor) @ key.float().transpose(-2, -1)
    if is_causal:
        attn_mask = query.new_ones(scores.shape[-2:], dtype=torch.bool).tril()  # a DTensor if the query is one
    if attn_mask is not None:
        is_bool = attn_mask.dtype == torch.bool
        scores = torch.where(attn_mask, scores, -torch.inf) if is_bool else scores + attn_mask
    top = scores.detach().amax(-1, keepdim=True)
    weights = torch.exp(scores - torch.where(top == -torch.inf, 0.0, top))
    total = weights.sum(-1, keepdim=True)
    # A row that attends to nothing is 0.
    return ((weights @ value.float()) / torch.where(total == 0, 1.0, total)).to(query.dtype)


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> None:
    """What PyTorch's own refuses."""
    dtypes = [each.dtype for each in (query, key, value)]
    if len(set(dtypes)) > 1 or not query.is_floating_point():
        raise RuntimeError(f"scaled_dot_product_attention: query, key and value need one real dtype, not {dtypes}")
    dims = [each.dim() for each in (query, key, value)]
    if min(dims) < 2:
        raise RuntimeError(f"scaled_dot_product_attention: query, key and value need 2 dimensions, they have {dims}")
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            f"scaled_dot_product_attention: attn_mask is bool, float32 or {query.dtype} as the query, not {mask.dtype}"
        )


def _is_one_op(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, grouped: bool
) -> bool:
    """Whether the card's own op takes it: no gradients, nothing empty, and batches that the queries have too. What does
    not fit together is left to the products below, which say so."""
    if query.size(-1) != key.size(-1) or key.size(-2) != value.size(-2):
        return False
    given = [each for each in (query, key, value, mask) if each is not None]
    if torch.is_grad_enabled() and any(each.requires_grad for each in given):
        return False
    if forward_ad._current_level >= 0:  # gradients in forward mode may be on their way
        return False
    if 0 in (*key.shape[-2:], value.size(-1)) or key.dim() != query.dim() or value.dim() != query.dim():
        return False
    heads = query.dim() - 3 if grouped else -1
    for dim, (own, *others) in enumerate(zip(*(each.shape[:-2] for each in given[:3]), strict=True)):
        if dim == heads and others[0] == others[1] and others[0] > 0 and own % others[0] == 0:
            continue
        if any(other not in (1, own) for other in others):
            return False
    return mask is None or _spreads(mask.shape, (*query.shape[:-1], key.size(-2)))


def _spreads(shape: torch.Size, over: tuple[int, ...]) -> bool:
    """Whether broadcasting makes that of it."""
    return len(shape) <= len(over) and all(n in (1, m) for n, m in zip(shape[::-1], over[::-1], strict=False))


def _for_each_query_head(heads: torch.Tensor, count: int) -> torch.Tensor:
    own = heads.size(-3)
    if own == 0 or count % own:
        raise RuntimeError(
            f"scaled_dot_product_attention(enable_gqa=True): {own} heads of keys do not divide {count} heads of queries"
        )
    repeated = heads.unsqueeze(-3).expand(*heads.shape[:-2], count // own, *heads.shape[-2:])
    return repeated.flatten(-4, -3)


# PyTorch's own is CompositeImplicit: what stands in for it on one device has to be registered in front of autograd.
for _key in ("AutogradPrivateUse1", "PrivateUse1"):
    _library.impl("scaled_dot_product_attention", scaled_dot_product_attention, _key)
