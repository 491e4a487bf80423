"""What convolutions and pools look through: windows, as a view of the padded input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..loop_ir.builder import Builder, Number, Value, is_integer
from .shapes import pad


@dataclass(frozen=True)
class Windows:
    """Of the last dimensions, in their order: how many windows, how long, how far apart, and from where on."""

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
        """With PyTorch's short forms: one number for all dimensions, and no stride where windows touch."""

        def each(given: Sequence[int]) -> tuple[int, ...]:
            return tuple(given) * len(out) if len(given) == 1 else tuple(given)

        return Windows(tuple(out), each(kernel), each(stride or kernel), each(padding), each(dilation))

    def view(self, b: Builder, x: Value, fill: Number) -> Value:
        """``[..., *out, *kernel]``; places outside of the input hold ``fill``."""
        rank = len(self.out)
        around: list[int] = []
        for n, out, kernel, stride, before, dilation in zip(
            x.size[-rank:], self.out, self.kernel, self.stride, self.padding, self.dilation, strict=True
        ):
            reach = (out - 1) * stride + (kernel - 1) * dilation + 1
            around = [before, max(reach - before - n, 0), *around]
        if any(around):
            x = pad(b, x, around, fill)
        steps = x.stride[-rank:]
        apart = tuple(s * n for s, n in zip(steps, self.stride, strict=True))
        inside = tuple(s * n for s, n in zip(steps, self.dilation, strict=True))
        return replace(x, size=(*x.size[:-rank], *self.out, *self.kernel), stride=(*x.stride[:-rank], *apart, *inside))

    def copy(self, b: Builder, x: Value, fill: Number) -> Value:
        """:meth:`view`, with overlapping places in memory of their own.

        The windows of a row lie side by side: folding a window then is folding rows, stick by stick.
        """
        windows, rank = self.view(b, x, fill), len(self.out)
        if self.out[-1] < self.kernel[-1]:  # a long window folds well as it is, and few of them fill no stick
            return windows
        lead = len(windows.size) - 2 * rank
        last = lead + rank - 1
        order = [i for i in range(len(windows.size)) if i != last] + [last]
        copied = b.copy(windows.permute(order))
        return copied.permute([order.index(i) for i in range(len(order))])


def least(dtype: torch.dtype) -> Number:
    """What no maximum prefers to anything; int64 has 32 bits on the card."""
    if is_integer(dtype):
        return max(torch.iinfo(dtype).min, -(2**31))
    return -float("inf")
