"""How ops that the card lacks are written with ops that it has, before autograd's graph is split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import torch

aten = torch.ops.aten


class Decompositions(dict[torch._ops.OpOverload, Callable[..., Any]]):
    """A table that pickles by name: caches key on it, and what it holds is covered by the compiler's version."""

    def __reduce__(self) -> tuple[Callable[[], Decompositions], tuple[()]]:
        return decompositions, ()


@cache
def decompositions() -> Decompositions:
    """Inductor's table with the card's changes."""
    from torch._inductor import decomposition

    return Decompositions({**_not_lowered(decomposition.decompositions), **_OURS})


@cache
def core_decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """What eager ops are taken apart with: PyTorch's own tables, which are there without Inductor."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    return {**_not_lowered({**core_aten_decompositions(), **get_decompositions(_MORE)}), **_OURS}


@cache
def withheld_decompositions() -> frozenset[Any]:
    """Ops that Inductor would have taken apart and cannot lower whole: on other devices they run eagerly."""
    from torch._inductor import decomposition

    from .lowerings import LOWERINGS

    return frozenset(decomposition.decompositions).intersection(LOWERINGS)


def _not_lowered(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    from .lowerings import LOWERINGS

    return {op: how for op, how in table.items() if op not in LOWERINGS}


def _attention(
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
    """What nn.MultiheadAttention calls when nothing needs a gradient."""
    linear = torch.nn.functional.linear
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2) for x, w, b in parts)
    scores = (q * (embed_dim // num_head) ** -0.5) @ k.transpose(-2, -1)
    if mask is not None:
        if mask_type == 1:  # which keys are padding
            mask = mask[:, None, None, :]
        scores = scores.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1)
    out = linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return out, out.new_empty(0)
    return out, weights.mean(1) if average_attn_weights else weights


def _encoder_layer(
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
    """What nn.TransformerEncoderLayer calls when nothing needs a gradient."""
    linear, norm = torch.nn.functional.linear, torch.nn.functional.layer_norm

    def attend(x: torch.Tensor) -> torch.Tensor:
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return _attention(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        x = linear(x, ffn_weight_1, ffn_bias_1)
        x = torch.nn.functional.gelu(x) if use_gelu else x.relu()
        return linear(x, ffn_weight_2, ffn_bias_2)

    if norm_first:
        src = src + attend(norm(src, [embed_dim], norm_weight_1, norm_bias_1, eps))
        return src + feed(norm(src, [embed_dim], norm_weight_2, norm_bias_2, eps))
    src = norm(src + attend(src), [embed_dim], norm_weight_1, norm_bias_1, eps)
    return norm(src + feed(src), [embed_dim], norm_weight_2, norm_bias_2, eps)


def _convolution_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    if transposed:
        return NotImplemented
    spatial = range(2, x.dim())
    stride, padding, dilation = (
        list(v) * len(spatial) if len(v) == 1 else list(v) for v in (stride, padding, dilation)
    )
    return (
        _gradient_of_input(gradient, x, weight, stride, padding, dilation, groups) if output_mask[0] else None,
        _gradient_of_weight(gradient, x, weight, stride, padding, dilation, groups) if output_mask[1] else None,
        gradient.sum([0, *spatial]) if output_mask[2] else None,
    )


def _gradient_of_input(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    """A convolution of the gradient, its elements ``stride`` apart, with the filters turned round."""
    spatial = range(2, x.dim())
    pads: list[int] = []
    for dim, step, pad, spread in zip(spatial, stride, padding, dilation, strict=True):
        apart = list(gradient.shape)
        apart[dim] = (apart[dim] - 1) * step + 1
        if step > 1:
            gradient = torch.slice_scatter(gradient.new_zeros(apart), gradient, dim, 0, None, step)
        reach = spread * (weight.shape[dim] - 1)
        pads = [reach - pad, x.shape[dim] + pad - apart[dim], *pads]
    turned = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(*spatial)
    gradient = torch.nn.functional.pad(gradient, pads)
    still, ones = [0] * len(spatial), [1] * len(spatial)
    return aten.convolution(gradient, turned, None, ones, still, dilation, False, still, groups)


def _gradient_of_weight(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    """The gradient times the windows that the filters saw."""
    x = torch.nn.functional.pad(x, [p for n in reversed(padding) for p in (n, n)]).contiguous()
    steps, inside, out = x.stride(), weight.shape[1], gradient.shape[2:]
    windows = x.as_strided(
        (groups, x.shape[0], *out, inside, *weight.shape[2:]),
        (
            inside * steps[1],
            steps[0],
            *(s * n for s, n in zip(steps[2:], stride, strict=True)),
            steps[1],
            *(s * n for s, n in zip(steps[2:], dilation, strict=True)),
        ),
    )
    rows = windows.reshape(groups, x.shape[0] * prod(out), inside * prod(weight.shape[2:]))
    columns = gradient.transpose(0, 1).reshape(groups, weight.shape[0] // groups, -1)
    return (columns @ rows).view(weight.shape)


# Not in PyTorch's core table, since other devices have kernels for them.
_MORE: list[Any] = [
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit_no_training,
    aten.native_batch_norm,
    aten.batch_norm_backward,
    aten._softmax_backward_data,
    aten.dist,
    aten.lcm,
    aten.linalg_vector_norm,
    aten.logit,
    aten.nll_loss2d_backward,
    aten.tril_indices,
    aten.triu_indices,
    aten.upsample_bilinear2d.vec,
]

_OURS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.convolution_backward.default: _convolution_backward,
    aten._native_multi_head_attention.default: _attention,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
