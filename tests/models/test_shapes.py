"""The ops of real models in their real shapes, against the host: what each descriptor lists under ``shapes``.

Bounds are those of the card's format: one rounding of the result, and what the order of an fp32 sum may change; a
composed op adds its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.models.architectures import ORDER, load
from tests.ops import grid

HALF = torch.float16
DECODE, PREFILL = 1, 33  # rows: a token, and a prompt that fills no stick
CONTEXT = 65  # keys that a query sees
OUTPUTS_COMPARED = 2048  # of a product, about
QUICK_NUMBERS = 1 << 20  # what `make test` may multiply or move

Inputs = list[Tensor]
Op = tuple[Callable[..., Any], Inputs, grid.Bound, int]  # what to call, with what, how far off, roundings on the way


def numbers(*size: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(size))
    return (torch.randn(size, generator=generator) * scale).to(HALF).to("spyre").cpu()


def weights(*size: int) -> Tensor:
    """As models have them: rows of length one or so."""
    return numbers(*size, scale=size[-1] ** -0.5)


def terms(count: int) -> Callable[..., int]:
    return lambda *_: count


def linear(shape: dict[str, Any], rows: int) -> Op:
    bias = [numbers(shape["out"])] if shape.get("bias") else []
    inputs = [numbers(rows, shape["in"]), weights(shape["out"], shape["in"]), *bias]
    return F.linear, inputs, grid.total(F.linear, terms(shape["in"] + 1)), 1


def addmm(shape: dict[str, Any], rows: int) -> Op:
    def call(bias: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return torch.addmm(bias, x, w)

    inputs = [numbers(shape["out"]), numbers(rows, shape["in"]), numbers(shape["in"], shape["out"], scale=0.03)]
    return call, inputs, grid.total(call, terms(shape["in"] + 1)), 1


def experts(shape: dict[str, Any], rows: int) -> Op:
    """Each row with the matrices of its own experts, of a few that stand for all."""
    count = min(4, shape["experts"])
    chosen = torch.arange(rows * 2).remainder(count)

    def call(x: Tensor, w: Tensor, index: Tensor) -> Tensor:
        return (w[index] @ x.repeat_interleave(2, 0)[:, :, None])[:, :, 0]

    inputs = [numbers(rows, shape["in"]), weights(count, shape["out"], shape["in"]), chosen]
    return call, inputs, grid.total(call, terms(shape["in"])), 1


def norm_bound(x: Tensor, *_: Tensor) -> Tensor:
    """The mean of squares in fp32 is off by its order at most."""
    return torch.tensor(x.shape[-1] * 2**-24) * (1 + x.abs().amax())


def rms_norm(shape: dict[str, Any], rows: int) -> Op:
    def call(x: Tensor, w: Tensor) -> Tensor:
        return F.rms_norm(x, (shape["width"],), w, shape["eps"])

    return call, [numbers(rows, shape["width"]), numbers(shape["width"])], norm_bound, 2


def layer_norm(shape: dict[str, Any], rows: int) -> Op:
    def call(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, (shape["width"],), w, b, shape["eps"])

    width = shape["width"]
    return call, [numbers(rows, width), numbers(width), numbers(width)], norm_bound, 2


def attention(shape: dict[str, Any], rows: int) -> Op:
    """Scores, weights and their sum round; the exponential makes a score's absolute error a weight's relative one."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, scale=shape["scale"], enable_gqa=True)

    def bound(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * shape["scale"]
        return 2**-9 * (4 + 4 * scores.abs().amax()) * v.abs().amax()

    kept = [numbers(1, shape["kv_heads"], CONTEXT, shape["head"], scale=s) for s in (0.5, 1.0)]
    return call, [numbers(1, shape["heads"], rows, shape["head"]), *kept], bound, 1


def rotary(shape: dict[str, Any], rows: int) -> Op:
    """Two products and their sum."""

    def call(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def bound(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.abs().chunk(2, -1)
        return 2**-9 * (x.abs() * cos.abs() + torch.cat([second, first], -1) * sin.abs())

    angle = torch.arange(rows)[:, None] * 10000.0 ** -torch.linspace(0, 1, shape["head"] // 2).repeat(2)
    turned = [f.to(HALF).to("spyre").cpu() for f in (angle.cos(), angle.sin())]
    return call, [numbers(1, shape["heads"], rows, shape["head"]), *turned], bound, 1


def gated(shape: dict[str, Any], rows: int) -> Op:
    """The activation rounds, and the product."""
    act = getattr(F, shape["act"])

    def call(gate: Tensor, up: Tensor) -> Tensor:
        return act(gate) * up

    return call, [numbers(rows, shape["width"]), numbers(rows, shape["width"])], lambda *_: torch.tensor(2.0**-20), 2


def embedding(shape: dict[str, Any], rows: int) -> Op:
    ids = torch.linspace(0, shape["rows"] - 1, rows).long()
    return F.embedding, [ids, numbers(shape["rows"], shape["width"])], grid.exact, 0


def topk(shape: dict[str, Any], rows: int) -> Op:
    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(torch.topk(x, shape["k"], -1))

    order = torch.arange(rows * shape["of"]).reshape(rows, shape["of"]) * 37 % shape["of"]  # no two alike in a row
    return call, [order.to(HALF)], lambda *_: (None, None), 0


def depthwise(shape: dict[str, Any], rows: int) -> Op:
    """Products of few taps, rounded one by one where they are summed in steps."""
    channels, taps = shape["channels"], shape["taps"]

    def call(x: Tensor, w: Tensor) -> Tensor:
        return F.conv1d(x, w, padding=taps - 1, groups=channels)

    def bound(x: Tensor, w: Tensor) -> Tensor:
        return 2**-9 * taps * call(x.abs(), w.abs())

    return call, [numbers(1, channels, rows), numbers(channels, 1, taps)], bound, 1


def patches(shape: dict[str, Any], rows: int) -> Op:
    side, width = shape["patch"], shape["width"]

    def call(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, stride=side)

    inputs = [numbers(1, 3, shape["image"], shape["image"]), numbers(width, 3, side, side, scale=0.04)]
    return call, inputs, grid.total(call, terms(3 * side * side)), 1


def convolution(shape: dict[str, Any], rows: int) -> Op:
    def call(x: Tensor, w: Tensor) -> Tensor:
        return F.conv1d(x, w, stride=shape["stride"], padding=1)

    count = shape["channels"] * shape["taps"]
    inputs = [numbers(1, shape["channels"], shape["length"]), numbers(shape["out"], shape["channels"], shape["taps"])]
    return call, [inputs[0], (inputs[1] * count**-0.5).to("spyre").cpu()], grid.total(call, terms(count)), 1


KINDS: dict[str, Callable[[dict[str, Any], int], Op]] = {
    kind.__name__: kind
    for kind in (linear, addmm, experts, rms_norm, layer_norm, attention, rotary, gated, embedding, topk)
    + (depthwise, patches, convolution)
}


def cost(shape: dict[str, Any], rows: int) -> int:
    """Numbers that the op has to look at, about."""
    return rows * prod(value for value in shape.values() if isinstance(value, int))


def name_of(kind: str, shape: dict[str, Any], rows: int) -> str:
    sizes = [f"{value:g}" for value in shape.values() if not isinstance(value, str | bool)]
    return "-".join([kind, *sizes, *(["bias"] if shape.get("bias") else []), str(rows)])


def parameters() -> list[Any]:
    """Every op of every descriptor for a prompt and for a token, each shape once; a kind's first small one is quick."""
    found: dict[str, Any] = {}
    quick: set[str] = set()
    for key, rows in product(ORDER, (PREFILL, DECODE)):
        for kind, shapes in load(key).shapes.items():
            for shape in shapes:
                name = name_of(kind, shape, rows)
                slow = kind in quick or cost(shape, rows) > QUICK_NUMBERS
                if not slow:
                    quick.add(kind)
                marks = pytest.mark.slow if slow else ()
                found.setdefault(name, pytest.param(kind, shape, rows, marks=marks, id=f"{key}-{name}"))
    return list(found.values())


@pytest.mark.parametrize(("kind", "shape", "rows"), parameters())
def test_shape(kind: str, shape: dict[str, Any], rows: int) -> None:
    function, given, bound, roundings = KINDS[kind](shape, rows)
    row = grid.Row(kind, function, bound=bound, roundings=roundings)
    inputs = [x.to("spyre") for x in given]
    with torch.no_grad(), torch.spyre.fallback("error"):
        torch._dynamo.reset()
        for way in (function, torch.compile(function, fullgraph=True)):
            got = tree_leaves(way(*inputs))
            if kind == "linear":  # in fp64 a whole head takes gigabytes and minutes; an odd step meets every lane
                some = slice(None, None, shape["out"] // OUTPUTS_COMPARED | 1)
                grid.compare([got[0][:, some]], row, [given[0], *(x[some] for x in given[1:])])
            else:
                grid.compare(got, row, inputs)


def test_every_descriptor_lists_shapes() -> None:
    for key in ORDER:
        assert set(load(key).shapes) <= set(KINDS) and load(key).shapes
