"""``torch.ops.spyre``: what the card does in one op and PyTorch has no op for, and the names its users know.

Each is defined here with what it computes, on any device; the card's own way is a lowering like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_library = torch.library.Library("spyre", "DEF")


def _op(
    schema: str,
    meaning: Callable[..., Any],
    keys: Sequence[str] = ("CPU", "Meta"),
    shape: Callable[..., Any] | None = None,
) -> None:
    """``shape``: makes an empty result, where that is quicker than the op itself without its numbers."""
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in keys:
        _library.impl(schema.split("(")[0], shape if shape and key == "Meta" else meaning, key)


# Written with PyTorch's own ops on every device, the card included.
_COMPOSED = ("CompositeImplicitAutograd",)


def _restickify(x: Tensor, dim: int = -1) -> Tensor:
    return x.clone()


def _part(output: Tensor, source: Tensor, dims: Sequence[int], offsets: Sequence[int]) -> Tensor:
    for dim, offset in zip(dims, offsets, strict=True):
        output = output.narrow(dim, offset, source.size(dim))
    return output


def _overwrite(source: Tensor, output: Tensor, dims: Sequence[int], offsets: Sequence[int]) -> None:
    _part(output, source, dims, offsets).copy_(source)


def _overwrite_f(source: Tensor, output: Tensor, dims: Sequence[int], offsets: Sequence[int]) -> Tensor:
    result = output.clone()
    _overwrite(source, result, dims, offsets)
    return result


def _topk(which: int) -> Callable[[Tensor, int, int], Tensor]:
    def chosen(x: Tensor, k: int, dim: int = -1) -> Tensor:
        return torch.topk(x, k, dim)[which].clone()

    return chosen


def _full(
    size: Sequence[int], value: float, *, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Tensor:
    return torch.full(size, value, dtype=dtype, device=device)


def _constant(value: float, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    return torch.full([], value, dtype=dtype, device=device)


_FP8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(_FP8).max


def _quantize(x: Tensor, scale: Tensor) -> Tensor:
    return (x.float() / scale).clamp(-_LARGEST, _LARGEST).to(_FP8)


def _dequantize(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
    return (x.float() * scale).to(dtype)


def _quantize_channels(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """A scale for each channel along ``dim``, with which its largest magnitude becomes float8's largest number."""
    others = [i for i in range(x.dim()) if i != dim % x.dim()]
    largest = x.float().abs().amax(others, keepdim=True) if others else x.float().abs()
    scale = torch.where(largest == 0, 1.0, largest / _LARGEST)
    return _quantize(x, scale), scale


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float = 1.0,
) -> Tensor:
    return F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=causal, scale=scale, enable_gqa=query.dim() > 2
    )


def _attention_shape(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float = 1.0,
) -> Tensor:
    return query.new_empty((*query.shape[:-1], value.size(-1)))


_op("full(int[] size, Scalar value, *, ScalarType? dtype=None, Device? device=None) -> Tensor", _full, _COMPOSED)
_op("constant(Scalar value, *, ScalarType? dtype=None, Device? device=None) -> Tensor", _constant, _COMPOSED)
_op("quantize_fp8_with_scale(Tensor input, Tensor scale) -> Tensor", _quantize, _COMPOSED)
_op(
    "dequantize_fp8_with_scale(Tensor input, Tensor scale, ScalarType dtype=5) -> Tensor",
    _dequantize,
    _COMPOSED,
)
_op("qfp8ch(Tensor input, int dim=-1) -> (Tensor, Tensor)", _quantize_channels, _COMPOSED)
_op("restickify(Tensor input, int dim=-1) -> Tensor", _restickify)
_op("overwrite(Tensor input, Tensor(a!) output, int[] dims, int[] offsets) -> ()", _overwrite, _COMPOSED)
_op("overwrite_f(Tensor input, Tensor output, int[] dims, int[] offsets) -> Tensor", _overwrite_f, _COMPOSED)
_op("rms_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor", F.rms_norm)
_op(
    "layer_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-5)"
    " -> Tensor",
    F.layer_norm,
)
_op(
    "gelu(Tensor input, str approximate='none') -> Tensor",
    lambda x, approximate="none": F.gelu(x, approximate=approximate),
)
_op("softplus(Tensor input, float beta=1, float threshold=20) -> Tensor", F.softplus)
_op("clamp(Tensor input, Scalar? min=None, Scalar? max=None) -> Tensor", torch.clamp)
_op(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask=None, bool causal=False, float scale=1.0)"
    " -> Tensor",
    _attention,
    shape=_attention_shape,
)
_op("topkvalue(Tensor input, int k, int dim=-1) -> Tensor", _topk(0))
_op("topkindex(Tensor input, int k, int dim=-1) -> Tensor", _topk(1))
