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
    """im2col: one copy writes every window as a column of a matrix, one matrix product applies the filters."""
    if transposed:
        raise Unsupported("transposed convolutions have no lowering")
    spatial = len(weight.size) - 2
    if len(x.size) != spatial + 2:
        raise Unsupported("a convolution needs a batch dimension")
    batch, out, dtype = x.size[0], b.meta.shape[2:], b.meta.dtype
    channels_in, channels_out = weight.size[1], weight.size[0] // groups  # of one group
    windows = Windows.of(out, weight.size[2:], stride, padding, dilation)
    taps = channels_in * prod(windows.kernel)
    rows = _separate_rows(out, dtype)
    positions = range(2, 2 + spatial)
    patches = windows.view(b, x, 0).permute([0, 1, *(i + spatial for i in positions), *positions])
    size = [batch, groups, taps, *rows, prod(out) // prod(rows)]
    if prod(windows.kernel) == 1:
        columns = view(b, patches, size)  # patches are [batch, channels, *kernel, *out]
    else:
        columns = b.empty(size, x.dtype)
        b.copy(patches, replace(columns, size=patches.size, stride=contiguous(patches.size)))
    row_dims, last = range(3, 3 + len(rows)), 3 + len(rows)
    columns = columns.permute([0, *row_dims, 1, 2, last])
    before_bias = dtype if bias is None or is_integer(dtype) else torch.float32
    filters = view(b, weight, [groups, channels_out, taps])
    product = b.matmul(filters, columns, before_bias)  # [batch, *rows, groups, channels_out, ...]
    product = product.permute([0, last - 2, last - 1, *(i - 2 for i in row_dims), last])
    product = view(b, product, b.meta.shape)
    if bias is None:
        return product
    return b.pointwise("add", product, view(b, bias, [-1, *([1] * spatial)]), dtype=dtype)


def _separate_rows(out: Sequence[int], dtype: torch.dtype) -> Sequence[int]:
    """The output dimensions whose rows get a matrix product each; usually none, so that one product takes all rows.

    Rows of, say, 57 elements start at many different offsets within a stick. Joining them into one long row would take
    a separate copy for each of these offsets.
    """
    elements = _C.get_elem_in_stick(dtype)
    offsets = elements // gcd(elements, out[-1])
    return out[:-1] if min(offsets, prod(out[:-1])) > 16 else ()
