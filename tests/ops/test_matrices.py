"""Matrix products, attention and convolutions."""

import torch
import torch.nn.functional as F

from tests.ops.grid import INTEGERS, Case, Row, check, check_together, exact, real, total

ALL_INTEGERS = (*INTEGERS, torch.int8, torch.uint8)
# A shape is (rows, inner, columns).
SHAPES = ((3, 63, 65), (64, 64, 64), (1, 1, 1), (127, 129, 3), (1, 1000, 65), (65, 64, 1), (129, 3, 127))


def product(name, function, left, right, *more, shapes=SHAPES, terms=lambda x, *_: x.shape[-1], **options):
    inputs = (real(-1, 1, left), real(-1, 1, right), *(real(-1, 1, size) for size in more))
    return Row(name, function, inputs, total(function, terms), shapes=shapes, **options)


def added(name, function, left, right, more, shapes=SHAPES):
    """A product in fp32, with something added before it is rounded."""
    return product(name, function, left, right, more, shapes=shapes, terms=lambda x, *_: x.shape[-1] + 2)


def batch(*dims):
    """Shape makers of the two sides with leading dimensions."""
    return (lambda s: (*dims, s[0], s[1])), (lambda s: (*dims, s[1], s[2]))


def left(s):
    return s[:2]


def right(s):
    return s[1:]


def attention(name, function, heads, keys, **more):
    def bound(q, k, v, *rest):
        scores = (q.abs() @ k.abs().repeat_interleave(q.shape[1] // k.shape[1], 1).mT) / q.shape[-1] ** 0.5
        return (2**-6 * (1 + scores.amax())) * v.abs().amax()

    sizes = (lambda s: (2, heads, s[0], s[1])), (lambda s: (2, keys, s[2], s[1])), (lambda s: (2, keys, s[2], s[1]))
    return Row(
        name,
        function,
        tuple(real(-1, 1, size) for size in sizes),
        bound,
        shapes=((3, 16, 5), (64, 64, 64), (65, 32, 65), (1, 64, 129)),
        **more,
    )


def whole(name, function, *sizes):
    """A product of integers: exact, and results of few bits wrap."""
    return Row(name, function, tuple(real(0, 90, size) for size in sizes), exact, ALL_INTEGERS, shapes=SHAPES)


def convolution(name, function, x, weight, *bias):
    inputs = (real(-1, 1, lambda s: x), real(-1, 1, lambda s: weight), *(real(-1, 1, lambda s, n=n: n) for n in bias))
    terms = torch.Size(weight[1:]).numel() + 1
    limit = total(function, lambda *t: terms)
    return Row(name, function, inputs, lambda *t: limit(*t) + 2**-9 * function(*(y.abs() for y in t)), shapes=((1,),))


ROWS = [
    product("mm", torch.mm, left, right),
    product("mm transposed", lambda x, y: x @ y.t(), left, lambda s: (s[2], s[1])),
    product("mm from transposed", lambda x, y: x.t() @ y, lambda s: (s[1], s[0]), right, terms=lambda x, *_: len(x)),
    product("bmm", torch.bmm, *batch(3)),
    product("bmm transposed", lambda x, y: x @ y.mT, lambda s: (3, s[0], s[1]), lambda s: (3, s[2], s[1])),
    product("matmul 4", torch.matmul, *batch(2, 3)),
    product("matmul 5", torch.matmul, *batch(2, 1, 3), shapes=SHAPES[:3]),
    product("matmul 3x2", torch.matmul, batch(3)[0], right),
    product("matmul 2x3", torch.matmul, left, batch(3)[1]),
    product("matmul 4x2", torch.matmul, batch(2, 3)[0], right),
    product("matmul 4x3", torch.matmul, batch(2, 3)[0], batch(3)[1]),
    product("matmul broadcast", torch.matmul, lambda s: (2, 1, *s[:2]), lambda s: (1, 3, *s[1:])),
    product("mv", torch.mv, left, lambda s: s[1:2]),
    product("vm", torch.matmul, lambda s: s[1:2], right),
    product("dot", torch.dot, lambda s: s[1:2], lambda s: s[1:2]),
    product("matmul 3x1", torch.matmul, batch(3)[0], lambda s: s[1:2]),
    product("outer", torch.outer, lambda s: s[:1], lambda s: s[2:]),
    product("linear", F.linear, left, lambda s: (s[2], s[1])),
    product("linear 3", F.linear, batch(2)[0], lambda s: (s[2], s[1])),
    product("linear 1", F.linear, lambda s: s[1:2], lambda s: (s[2], s[1])),
    product("einsum", lambda x, y: torch.einsum("bij,bjk->bik", x, y), *batch(3)),
    product(
        "einsum heads",
        lambda x, y: torch.einsum("ihk,jhk->hij", x, y),
        lambda s: (s[0], 2, s[1]),
        lambda s: (s[2], 2, s[1]),
    ),
    added("linear bias", F.linear, left, lambda s: (s[2], s[1]), lambda s: s[2:]),
    Row(
        "linear bias 3",
        F.linear,
        tuple(real(-1, 1, size) for size in (batch(2)[0], lambda s: (s[2], s[1]), lambda s: s[2:])),
        lambda *t: 2**-8 * F.linear(*(x.abs() for x in t)),  # a product and a sum of their own where rows lie apart
        shapes=SHAPES,
        apart=True,
    ),
    added("addmm", lambda x, y, b: torch.addmm(b, x, y), left, right, lambda s: s[2:]),
    added("addmm scaled", lambda x, y, b: torch.addmm(b, x, y, beta=0.5, alpha=2), left, right, lambda s: (s[0], s[2])),
    added("addmm beta 0", lambda x, y, b: torch.addmm(b, x, y, beta=0, alpha=2), left, right, lambda s: (s[0], s[2])),
    added("baddbmm", lambda x, y, b: torch.baddbmm(b, x, y), *batch(3), lambda s: (3, s[0], s[2])),
    added("addmv", lambda x, y, b: torch.addmv(b, x, y), left, lambda s: s[1:2], lambda s: s[:1]),
    added("addbmm", lambda x, y, b: torch.addbmm(b, x, y), *batch(3), lambda s: (s[0], s[2])),
    whole("integer mm", torch.mm, left, right),
    whole("integer mm transposed", lambda x, y: (x - 40) @ y.t(), left, lambda s: (s[2], s[1])),
    whole("integer bmm", torch.bmm, *batch(3)),
    whole("integer matmul broadcast", torch.matmul, lambda s: (2, 1, *s[:2]), lambda s: (1, 3, *s[1:])),
    whole("integer mv", torch.mv, left, lambda s: s[1:2]),
    whole("integer dot", torch.dot, lambda s: s[1:2], lambda s: s[1:2]),
    whole("integer addmm", lambda x, y, b: torch.addmm(b, x, y, beta=3, alpha=-2), left, right, lambda s: s[2:]),
    whole(
        "integer addr", lambda x, y, b: torch.addr(b, x, y, alpha=2), lambda s: s[:1], lambda s: s[2:], lambda s: s[2:]
    ),
    whole("integer linear", F.linear, left, lambda s: (s[2], s[1])),
    whole("integer einsum", lambda x, y: torch.einsum("bij,bjk->bik", x, y), *batch(3)),
    whole("integer tensordot", lambda x, y: torch.tensordot(x, y, 1), batch(2)[0], right),
    whole("integer cross", torch.linalg.cross, lambda s: (s[0], 3), lambda s: (s[0], 3)),
    Row("cross", torch.linalg.cross, (real(of=lambda s: (s[0], 3)),) * 2, lambda x, y: 2**-20, shapes=SHAPES),
    Row(
        "cross 0",
        lambda x, y: torch.linalg.cross(x, y, dim=0),
        (real(of=lambda s: (3, s[1])), real(of=lambda s: (3, 1))),
        lambda x, y: 2**-20,
        shapes=SHAPES,
    ),
    Row("vdot", torch.vdot, (real(of=lambda s: s[1:2]),) * 2, total(torch.vdot, lambda x, y: len(x)), shapes=SHAPES),
    Row(
        "addr",
        lambda x, y, b: torch.addr(b, x, y, beta=0.5, alpha=2),
        (real(of=lambda s: s[:1]), real(of=lambda s: s[2:]), real(of=lambda s: (s[0], s[2]))),
        lambda x, y, b: 2**-18,
        shapes=SHAPES,
    ),
    attention("attention", F.scaled_dot_product_attention, 3, 3),
    attention("attention causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), 2, 2),
    attention("attention grouped", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), 4, 2),
    attention("attention scaled", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.1), 2, 2),
    convolution("conv2d of one point, channels in several sticks", F.conv2d, (2, 256, 2, 2), (2, 256, 1, 1), (2,)),
    convolution("conv1d", F.conv1d, (2, 3, 65), (5, 3, 3)),
    convolution("conv1d bias", lambda x, w, b: F.conv1d(x, w, b, padding=1), (2, 3, 65), (5, 3, 3), (5,)),
    convolution("conv1d strided", lambda x, w: F.conv1d(x, w, stride=2, dilation=2, padding=2), (2, 3, 65), (5, 3, 3)),
    convolution("conv1d depthwise", lambda x, w: F.conv1d(x, w, groups=6, padding=3), (2, 6, 127), (6, 1, 4)),
    convolution("conv1d groups", lambda x, w: F.conv1d(x, w, groups=2), (2, 6, 65), (4, 3, 3)),
    convolution("conv2d", F.conv2d, (2, 3, 9, 17), (5, 3, 3, 3)),
    convolution("conv2d bias", lambda x, w, b: F.conv2d(x, w, b, padding=1), (2, 3, 9, 17), (5, 3, 3, 3), (5,)),
    convolution("conv2d patches", lambda x, w: F.conv2d(x, w, stride=4), (1, 3, 16, 16), (65, 3, 4, 4)),
    convolution(
        "conv2d groups",
        lambda x, w: F.conv2d(x, w, groups=2, padding=(1, 0), stride=(2, 1)),
        (2, 4, 9, 9),
        (6, 2, 3, 2),
    ),
]


def test_eager(case: Case) -> None:
    check(case)


def test_compiled(cases: list[Case]) -> None:
    check_together(cases)
