"""The windows of convolutions and pools, as a view of the padded input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..loop_ir.builder import Builder, Number, Value, is_integer
from .shapes import pad


@dataclass(frozen=True)
class Windows:
    """The geometry of windows along the last dimensions: their number, length, distance, padding and dilation."""

    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @staticmethod
    def of(
        out: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int] = (1,),
    ) -> Windows:
        """Expands PyTorch's short forms: one number for all dimensions; an empty stride, which is the kernel's size."""

        def each(given: Sequence[int]) -> tuple[int, ...]:
            return tuple(given) * len(out) if len(given) == 1 else tuple(given)

        return Windows(tuple(out), each(kernel), each(stride or kernel), each(padding), each(dilation))

    def view(self, b: Builder, x: Value, fill: Number) -> Value:
        """A view ``[..., *out, *kernel]``, in which padding holds ``fill``."""
        rank = len(self.out)
        pads: list[int] = []
        for n, out, kernel, stride, before, dilation in zip(
            x.size[-rank:], self.out, self.kernel, self.stride, self.padding, self.dilation, strict=True
        ):
            reach = (out - 1) * stride + (kernel - 1) * dilation + 1
            pads = [before, max(reach - before - n, 0), *pads]
        if any(pads):
            x = pad(b, x, pads, fill)
        element = x.stride[-rank:]
        between = tuple(s * n for s, n in zip(element, self.stride, strict=True))
        within = tuple(s * n for s, n in zip(element, self.dilation, strict=True))
        size = (*x.size[:-rank], *self.out, *self.kernel)
        return replace(x, size=size, stride=(*x.stride[:-rank], *between, *within))

    def copy(self, b: Builder, x: Value, fill: Number) -> Value:
        """:meth:`view` as a copy in which elements of overlapping windows no longer share memory.

        The windows of a row are the innermost dimension, so that a fold over a window combines whole sticks.
        """
        windows, rank = self.view(b, x, fill), len(self.out)
        if self.out[-1] < self.kernel[-1]:  # long windows need no copy; few windows fill no stick
            return windows
        lead = len(windows.size) - 2 * rank
        last = lead + rank - 1
        order = [i for i in range(len(windows.size)) if i != last] + [last]
        copied = b.copy(windows.permute(order))
        return copied.permute([order.index(i) for i in range(len(order))])


def least(dtype: torch.dtype) -> Number:
    """The neutral element of a maximum; int64 has 32 bits on the card."""
    if is_integer(dtype):
        return max(torch.iinfo(dtype).min, -(2**31))
    return -float("inf")
