"""Convolutions, pools, interpolation, norms and losses."""

from math import prod

import torch
import torch.nn.functional as F

from tests.ops.grid import INTEGERS, Case, Row, check, check_together, element, exact, ids, mask, real, total

LAYOUTS = ("plain", "transposed", "sliced")
LINE, PLANE, SPACE = (2, 3, 65), (2, 3, 9, 17), (1, 2, 5, 6, 7)


def sized(name, function, *sizes, bound=exact, low=-1, **more):
    """An op on tensors of given sizes."""
    inputs = tuple(real(low, 1, lambda s, size=size: size) for size in sizes)
    return Row(name, function, inputs, bound, shapes=((1,),), layouts=LAYOUTS, **more)


def summed(name, function, *sizes, terms=64, **more):
    """A sum of so many products, in fp32, rounded once."""
    return sized(name, function, *sizes, bound=total(function, lambda *_: terms), **more)


def convolved(name, function, x, weight, *bias):
    return summed(name, function, x, weight, *bias, terms=prod(weight[1:]) + 1)


def resampled(name, function, size):
    """Weights follow from places in fp32."""
    return sized(name, function, size, bound=lambda x: 2**-18 * x.abs().amax(), apart=True)


def normal(x, *_):
    """Centred and scaled in fp32: what is off is off from the mean's rounding."""
    return 2**-16 * (1 + x.abs().amax())


CONVOLUTIONS = [
    convolved("conv2d same", lambda x, w: F.conv2d(x, w, padding="same"), PLANE, (4, 3, 3, 2)),
    convolved("conv2d one row", lambda x, w: F.conv2d(x, w, stride=(2, 3)), PLANE, (4, 3, 9, 2)),
    convolved("conv2d 1x1", F.conv2d, PLANE, (4, 3, 1, 1)),
    convolved("conv2d odd rows", lambda x, w, b: F.conv2d(x, w, b, padding=2), (1, 2, 33, 35), (3, 2, 3, 3), (3,)),
    convolved("conv3d", lambda x, w, b: F.conv3d(x, w, b, stride=(2, 1, 2), padding=1), SPACE, (4, 2, 3, 2, 3), (4,)),
    convolved("unbatched", F.conv1d, LINE[1:], (5, 3, 3)),
    summed("conv_transpose1d", lambda x, w, b: F.conv_transpose1d(x, w, b, stride=3), LINE, (3, 4, 4), (4,)),
    summed(
        "conv_transpose2d",
        lambda x, w: F.conv_transpose2d(x, w, stride=(2, 1), padding=(1, 2), output_padding=(1, 0), dilation=(1, 2)),
        PLANE,
        (3, 4, 3, 3),
    ),
    summed(
        "conv_transpose2d groups",
        lambda x, w: F.conv_transpose2d(x, w, groups=2, stride=2),
        (1, 4, 5, 6),
        (4, 3, 2, 3),
    ),
]

POOLS = [
    summed("avg_pool1d", lambda x: F.avg_pool1d(x, 4, 3, padding=1), LINE),
    summed("avg_pool2d", lambda x: F.avg_pool2d(x, (3, 2)), PLANE),
    summed("avg_pool2d overlap", lambda x: F.avg_pool2d(x, 3, (1, 2), padding=1), PLANE),
    summed("avg_pool2d ceil", lambda x: F.avg_pool2d(x, 4, 3, padding=2, ceil_mode=True), PLANE),
    summed(
        "avg_pool2d within", lambda x: F.avg_pool2d(x, 4, 3, padding=1, ceil_mode=True, count_include_pad=False), PLANE
    ),
    summed("avg_pool2d divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), PLANE[1:]),
    summed("avg_pool3d", lambda x: F.avg_pool3d(x, (2, 3, 2), 2, padding=1), SPACE),
    sized("max_pool1d", lambda x: F.max_pool1d(x, 3, 2, padding=1, return_indices=True), LINE),
    sized("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), PLANE),
    sized("max_pool2d dilated", lambda x: F.max_pool2d(x, 2, 1, 1, (2, 3), return_indices=True), PLANE),
    sized("max_pool2d ceil", lambda x: F.max_pool2d(x, (2, 4), (3, 3), ceil_mode=True, return_indices=True), PLANE[1:]),
    sized("max_pool3d", lambda x: F.max_pool3d(x, 2, padding=1, return_indices=True), SPACE),
    sized("lp_pool", lambda x: F.lp_pool2d(x, 2.0, 3, 2), PLANE, bound=lambda x: 2**-6 * F.lp_pool2d(x, 2.0, 3, 2)),
    *(
        summed(f"adaptive_avg_pool2d {size}", lambda x, size=size: F.adaptive_avg_pool2d(x, size), PLANE)
        for size in (1, (3, 17), (4, 5), (11, None))
    ),
    summed("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 7), LINE),
    summed("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (5, 4, 3)), SPACE),
    *(
        sized(f"adaptive_max_pool2d {size}", lambda x, size=size: F.adaptive_max_pool2d(x, size, True), PLANE)
        for size in (1, (3, 17), (4, 5))
    ),
    sized("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, (2, 4, 7), True), SPACE),
    sized("max_unpool", lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (2, 3, 8, 10)),
    Row(
        "pools of integers",
        lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2)),
        (real(-9, 9, lambda s: PLANE),),
        exact,
        INTEGERS[:1],
        ((1,),),
        LAYOUTS,
    ),
]

INTERPOLATION = [
    *(
        sized(f"interpolate {mode}", lambda x, mode=mode: F.interpolate(x, size=(5, 23), mode=mode), PLANE)
        for mode in ("nearest", "nearest-exact")
    ),
    sized("interpolate twice", lambda x: F.interpolate(x, scale_factor=2), PLANE),
    *(
        resampled(
            f"interpolate {mode} {corners}",
            lambda x, mode=mode, corners=corners: F.interpolate(x, (4, 30), mode=mode, align_corners=corners),
            PLANE,
        )
        for mode in ("bilinear", "bicubic")
        for corners in (True, False)
    ),
    resampled("interpolate scale", lambda x: F.interpolate(x, scale_factor=(0.7, 2.3), mode="bilinear"), PLANE),
    resampled("interpolate linear", lambda x: F.interpolate(x, 130, mode="linear"), LINE),
    resampled("interpolate trilinear", lambda x: F.interpolate(x, (3, 9, 7), mode="trilinear"), SPACE),
    resampled("interpolate area", lambda x: F.interpolate(x, (4, 5), mode="area"), PLANE),
    sized("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (2, 8, 3, 5)),
    sized("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), (2, 2, 6, 10)),
    sized("unfold", lambda x: F.unfold(x, (3, 2), padding=1, stride=2), PLANE),
    summed("fold", lambda x: F.fold(x, (6, 7), (2, 3), padding=1), (2, 12, 49), terms=6),
]

NORMS = [
    sized("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), (2, 4, 9), (4,), (4,), bound=normal),
    sized("instance_norm", lambda x: F.instance_norm(x), PLANE, bound=normal, roundings=2),
    sized(
        "batch_norm",
        lambda x, m, v, w, b: F.batch_norm(x, m, v + 2, w, b),
        PLANE,
        *[(3,)] * 4,
        bound=lambda x, *_: 2**-8 * (1 + x.abs().amax()),
    ),
    sized(
        "batch_norm training",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        PLANE,
        (3,),
        (3,),
        bound=lambda x, *_: 2**-8 * (1 + x.abs().amax()),
    ),
    Row(
        "embedding renorm",
        lambda w, at: F.embedding(at, w.clone(), max_norm=1.0),
        (real(-1, 1, lambda s: (9, 5)), ids(9, lambda s: (4, 3))),
        element,
        shapes=((1,),),
        layouts=LAYOUTS,
        roundings=4,
    ),
    sized("local_response_norm", lambda x: F.local_response_norm(x, 3), PLANE, bound=element, roundings=6),
    sized("normalize", lambda x: F.normalize(x, dim=1), PLANE, bound=element, roundings=3),
    sized("cosine_similarity", lambda x, y: F.cosine_similarity(x, y), PLANE, PLANE, bound=lambda *_: 2**-7),
]


def classes(name, function, size, *more, **options):
    """A loss of logits and classes."""
    target = (size[0], *size[2:])
    inputs = (real(-2, 2, lambda s: size), ids(size[1], lambda s: target), *more)
    return Row(name, function, inputs, lambda *_: 2**-6, shapes=((1,),), layouts=LAYOUTS, **options)


weights = real(0.5, 1, lambda s: (10,))
LOSSES = [
    classes("cross_entropy", F.cross_entropy, (33, 10)),
    classes("cross_entropy none", lambda x, t: F.cross_entropy(x, t, reduction="none"), (33, 10)),
    classes("cross_entropy planes", lambda x, t: F.cross_entropy(x, t, ignore_index=3), (2, 10, 5, 7)),
    classes("cross_entropy weighted", lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.2), (9, 10), weights),
    classes("nll_loss", lambda x, t, w: F.nll_loss(x, t, w, ignore_index=2), (33, 10), weights),
    sized(
        "cross_entropy of probabilities",
        lambda x, p: F.cross_entropy(x, p.softmax(1)),
        *[(9, 10)] * 2,
        bound=lambda *_: 2**-6,
    ),
    *(
        sized(f"{loss.__name__}", loss, *[(7, 65)] * 2, bound=lambda *_: 2**-6)
        for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss)
    ),
    sized(
        "binary_cross_entropy_with_logits",
        F.binary_cross_entropy_with_logits,
        *[(7, 65)] * 2,
        bound=lambda *_: 2**-6,
    ),
    sized(
        "kl_div",
        lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
        *[(7, 65)] * 2,
        bound=lambda *_: 2**-6,
    ),
]

ATTENTION = [
    Row(
        f"attention masked {kind}",
        lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m),
        (*(real(-1, 1, lambda s, n=n: (2, 3, n, 16)) for n in (7, 9)), make),
        lambda *_: 2**-6,
        shapes=((1,),),
        layouts=LAYOUTS,
    )
    for kind, make in (("bool", mask(lambda s: (7, 9))), ("float", real(-2, 2, lambda s: (2, 1, 7, 9))))
]

ROWS = [*CONVOLUTIONS, *POOLS, *INTERPOLATION, *NORMS, *LOSSES, *ATTENTION]


def test_eager(case: Case) -> None:
    check(case)


def test_compiled(cases: list[Case]) -> None:
    check_together(cases)


def test_norms_of_nothing() -> None:
    empty = torch.empty(0, 3, 4, device="spyre")
    assert F.batch_norm(empty, None, None, training=True).shape == (0, 3, 4)


def test_maxima_of_nothing_but_the_least_number() -> None:
    """The index is the window's first place inside of the input, not one in the padding."""
    x = torch.full((1, 1, 5, 6), -float("inf"))
    for options in ({"padding": 1}, {"padding": 1, "dilation": 2}):
        want = F.max_pool2d(x, 3, 2, return_indices=True, **options)
        got = F.max_pool2d(x.to("spyre"), 3, 2, return_indices=True, **options)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True))
