"""Convolutions as matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch

from ..builder import Builder, Unsupported, Value, is_integer
from ..loop_ir import contiguous
from .registry import lowers
from .views import view
from .windows import Windows

aten = torch.ops.aten


@lowers(aten.convolution.default)
def convolution(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    """One copy makes the windows columns of a matrix, one product with the filters does the rest."""
    if transposed:
        raise Unsupported("a transposed convolution")
    spatial = len(weight.size) - 2
    if len(x.size) != spatial + 2:
        raise Unsupported("a convolution without a batch dimension")
    batch, out = x.size[0], b.meta.shape[2:]
    inside, outside = weight.size[1], weight.size[0] // groups
    seen = Windows.of(out, weight.size[2:], stride, padding, dilation)
    windows = seen.view(b, x, 0)  # [batch, channels, *out, *kernel]
    at = range(2, 2 + spatial)
    windows = windows.permute([0, 1, *(i + spatial for i in at), *at])
    length, taps = prod(out), inside * prod(seen.kernel)
    if prod(seen.kernel) == 1:
        columns = view(b, windows, [batch, groups, taps, length])
    else:
        columns = b.empty([batch, groups, taps, length], x.dtype)
        b.copy(windows, replace(columns, size=windows.size, stride=contiguous(windows.size)))
    filters, dtype = view(b, weight, [groups, outside, taps]), b.meta.dtype
    if bias is None:
        return view(b, b.matmul(filters, columns, dtype), b.meta.shape)
    product = b.matmul(filters, columns, dtype if is_integer(dtype) else torch.float32)
    return b.pointwise("add", view(b, product, b.meta.shape), view(b, bias, [-1, *([1] * spatial)]), dtype=dtype)
