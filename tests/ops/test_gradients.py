"""Gradients of what works on windows, place by place; tests of training have the others."""

import torch
import torch.nn.functional as F

from tests.ops.grid import Case, Row, check, real

PLANE = (2, 3, 9, 17)


def gradient(function):
    """The derivatives of a function by its inputs, for a gradient that is not the same everywhere."""

    def derived(*inputs):
        inputs = [x.detach().requires_grad_() for x in inputs]
        out = function(*inputs)
        by = torch.arange(out.numel(), device=out.device).view(out.shape) % 5 - 2
        return torch.autograd.grad(out, inputs, by.to(out.dtype))

    return derived


def differentiated(name, function, *sizes, terms=256):
    """Sums of at most ``terms`` elements, each at most 2 * the largest input, after one rounding."""
    derived = gradient(function)
    inputs = tuple(real(-1, 1, lambda s, size=size: size) for size in sizes)

    def bound(*inputs):
        most = max(x.abs().amax() for x in inputs)
        return [terms * 2**-24 * 2 * most.clamp(min=1)] * len(inputs)

    return Row(name, derived, inputs, bound, shapes=((1,),), layouts=("plain", "sliced"))


ROWS = [
    differentiated(
        "of conv2d", lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=1, dilation=(1, 2)), PLANE, (4, 3, 3, 3)
    ),
    differentiated("of conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, stride=2), (2, 3, 4, 5), (3, 2, 3, 2)),
    differentiated("of avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), PLANE),
    differentiated("of max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), PLANE),
    differentiated("of adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (4, 17)), PLANE),
    differentiated("of adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (4, 5)), PLANE),
    differentiated("of bilinear", lambda x: F.interpolate(x, (4, 30), mode="bilinear"), PLANE),
    differentiated("of nearest", lambda x: F.interpolate(x, (4, 30)), PLANE),
    differentiated("of reflect", lambda x: F.pad(x, (3, 2, 1, 4), mode="reflect"), PLANE),
    differentiated("of replicate", lambda x: F.pad(x, (3, 2, 1, 4), mode="replicate"), PLANE),
]


def test_eager(case: Case) -> None:
    check(case)
