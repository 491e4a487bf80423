"""Fused attention and encoder layers."""

from __future__ import annotations

import torch

from .registry import decomposes

aten = torch.ops.aten


@decomposes(aten._native_multi_head_attention.default)
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op that nn.MultiheadAttention calls when no gradient is needed."""
    linear = torch.nn.functional.linear
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2) for x, w, b in parts)
    scores = (q * (embed_dim // num_head) ** -0.5) @ k.transpose(-2, -1)
    if mask is not None:
        if mask_type == 1:  # a mask of the keys that are padding
            mask = mask[:, None, None, :]
        scores = scores.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1)
    out = linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return out, out.new_empty(0)
    return out, weights.mean(1) if average_attn_weights else weights


@decomposes(aten._transformer_encoder_layer_fwd.default)
def encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """The op that nn.TransformerEncoderLayer calls when no gradient is needed."""
    linear, norm = torch.nn.functional.linear, torch.nn.functional.layer_norm

    def attend(x: torch.Tensor) -> torch.Tensor:
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return attention(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        x = linear(x, ffn_weight_1, ffn_bias_1)
        x = torch.nn.functional.gelu(x) if use_gelu else x.relu()
        return linear(x, ffn_weight_2, ffn_bias_2)

    if norm_first:
        src = src + attend(norm(src, [embed_dim], norm_weight_1, norm_bias_1, eps))
        return src + feed(norm(src, [embed_dim], norm_weight_2, norm_bias_2, eps))
    src = norm(src + attend(src), [embed_dim], norm_weight_1, norm_bias_1, eps)
    return norm(src + feed(src), [embed_dim], norm_weight_2, norm_bias_2, eps)
