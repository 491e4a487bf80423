"""Convolutions as matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, prod

import torch

from ... import _C
from ..loop_ir import contiguous
from ..loop_ir.builder import Builder, Unsupported, Value, is_integer
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
    batch, out, dtype = x.size[0], b.meta.shape[2:], b.meta.dtype
    inside, outside = weight.size[1], weight.size[0] // groups
    seen = Windows.of(out, weight.size[2:], stride, padding, dilation)
    taps = inside * prod(seen.kernel)
    apart = _apart(out, dtype)
    at = range(2, 2 + spatial)
    windows = seen.view(b, x, 0).permute([0, 1, *(i + spatial for i in at), *at])  # [batch, channels, *kernel, *out]
    size = [batch, groups, taps, *apart, prod(out) // prod(apart)]
    if prod(seen.kernel) == 1:
        columns = view(b, windows, size)
    else:
        columns = b.empty(size, x.dtype)
        b.copy(windows, replace(columns, size=windows.size, stride=contiguous(windows.size)))
    rows = range(3, 3 + len(apart))
    columns = columns.permute([0, *rows, 1, 2, 3 + len(apart)])
    wide = dtype if bias is None or is_integer(dtype) else torch.float32
    product = b.matmul(view(b, weight, [groups, outside, taps]), columns, wide)  # [batch, *apart, groups, outside, ...]
    product = product.permute([0, *(i + len(apart) - 2 for i in (3, 4)), *(i - 2 for i in rows), 3 + len(apart)])
    product = view(b, product, b.meta.shape)
    if bias is None:
        return product
    return b.pointwise("add", product, view(b, bias, [-1, *([1] * spatial)]), dtype=dtype)


def _apart(out: Sequence[int], dtype: torch.dtype) -> Sequence[int]:
    """The dimensions of the output of which each row has a product of its own.

    Mostly none: one product takes all of them. But where rows begin at ever other places of a stick, as those of 57
    elements do, making one row of them all takes a copy in as many pieces.
    """
    elements = _C.get_elem_in_stick(dtype)
    beginnings = elements // gcd(elements, out[-1])
    return out[:-1] if min(beginnings, prod(out[:-1])) > 16 else ()
