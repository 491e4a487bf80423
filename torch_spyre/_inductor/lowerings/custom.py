"""Lowerings of the card's own ops, ``torch.ops.spyre``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ...ops import custom
from ..loop_ir import Parameter
from ..loop_ir.builder import Builder, HostNumbers, Number, Value
from . import norms, pointwise
from .registry import lowers

del custom  # its import defines the ops
spyre = torch.ops.spyre


@lowers(spyre.restickify.default)
def restickify(b: Builder, x: Value, dim: int = -1) -> Value:
    """A copy of ``x`` whose sticks run along ``dim``."""
    out = b.empty(x.size, x.dtype, b.meta.stride())
    dim %= max(len(x.size), 1)
    order = tuple(sorted((i for i in range(len(x.size)) if i != dim), key=lambda i: -out.stride[i]))
    b.kernel.buffers[out.buffer] = replace(b.buffer(out), order=(*order, dim) if x.size else ())
    return b.copy(x, out)


@lowers(spyre.rms_norm.default)
def rms_norm(
    b: Builder, x: Value, shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Value:
    return norms.rms_normal(b, x, shape, weight, eps, b.meta.dtype)[0]


@lowers(spyre.layer_norm.default)
def layer_norm(
    b: Builder,
    x: Value,
    shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Value:
    return norms.normal(b, x, shape, weight, bias, eps, b.meta.dtype)[0]


@lowers(spyre.gelu.default)
def gelu(b: Builder, x: Value, approximate: str = "none") -> Value:
    return pointwise.gelu(b, x, approximate=approximate)


@lowers(spyre.softplus.default)
def softplus(b: Builder, x: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    return pointwise.softplus(b, x, beta, threshold)


@lowers(spyre.clamp.default)
def clamp(b: Builder, x: Value, min: Number | None = None, max: Number | None = None) -> Value:
    return pointwise.clamp(b, x, min, max)


@lowers(spyre.attention.default)
def attention(
    b: Builder,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    causal: bool = False,
    scale: float = 1.0,
) -> Value:
    return b.attention(query, key, value, mask, causal, scale)


@lowers(spyre.paged_attention.default)
def paged_attention(
    b: Builder,
    query: Value,
    key_cache: Value,
    value_cache: Value,
    block_table: Value,
    query_starts: HostNumbers,
    lengths: HostNumbers,
    scale: float,
    *,
    causal: bool = True,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: Value | None = None,
    alibi_slopes: Value | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> Value:
    fixed = [scale * k_scale, float(causal), float(window), soft_cap, v_scale]
    numbers: list[Parameter] = [*fixed, *query_starts.scalars(), *lengths.scalars()]
    return b.paged_attention(query, key_cache, value_cache, block_table, sinks, alibi_slopes, numbers)


@lowers(spyre.topkvalue.default)
def topkvalue(b: Builder, x: Value, k: int, dim: int = -1) -> Value:
    return b.topk("topkvalue", x, k, dim, True)


@lowers(spyre.topkindex.default)
def topkindex(b: Builder, x: Value, k: int, dim: int = -1) -> Value:
    return b.topk("topkindex", x, k, dim, True)
