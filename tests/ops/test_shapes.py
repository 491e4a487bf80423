"""Views, joins, factories and casts: moves that change no value, apart from what a cast changes."""

import torch
import torch.nn.functional as F

from tests.ops.grid import EMPTY, FEW, FLOATS, INTEGERS, LAYOUTS, SHAPES, Case, Row, check, check_together, exact, real

ALL = (*FLOATS, torch.int64, torch.bool)
MATRICES = ((129, 3), (63, 64), (1, 1), (65, 129), (3, 1000), (127, 1), (64, 128))


def view(name, function, shapes=SHAPES, **more):
    """A view alone is no work of the card's: what is tested is reading through it, and being read by another op."""
    return Row(f"view {name}", lambda x: _used(function(x)), (real(),), exact, ALL, shapes, **more)


def _used(x):
    return tuple(_used(each) for each in x) if isinstance(x, tuple | list) else (x.clone(), x != 1)


def row(name, function, shapes=SHAPES, count=1, **more):
    return Row(name, function, (real(),) * count, exact, ALL, shapes, **more)


# Compiled, PyTorch promises results with the gaps of a strided input.
GAPLESS = tuple(name for name in LAYOUTS if name not in ("strided", "sliced"))


def cast(given, wanted):
    name = f"{given} to {wanted}".replace("torch.", "")
    low, high = (0, 100) if torch.uint8 in (given, wanted) else (-100, 100)
    function = (lambda x: x.to(wanted)) if given != wanted else (lambda x: x.to(wanted, copy=True))
    bound = (lambda x: 0) if wanted.is_floating_point else exact
    return Row(name, function, (real(low, high),), bound, (given,), ((65,), (3, 129), (2, 3, 64)), FEW[:3])


def made(name, function, shapes=((65,), (3, 129), (2, 3, 1, 64), (1,))):
    return Row(name, lambda x: function(x), (real(),), exact, ALL, shapes, ("plain", "transposed"))


DTYPES = (*FLOATS, *INTEGERS, torch.int8, torch.uint8, torch.int16, torch.bool)

ROWS = [
    view("transpose", lambda x: x.transpose(0, -1)),
    view("reversed", lambda x: x.permute(*reversed(range(x.dim())))),
    view("reshape", lambda x: x.reshape(-1)),
    view("reshape of transposed", lambda x: x.transpose(0, -1).reshape(-1)),
    view("flatten", lambda x: x.flatten(0, 1), MATRICES),
    view("unflatten", lambda x: x.unflatten(-1, (1, -1))),
    view("split of a dimension", lambda x: x.reshape(-1, 2, 32), ((64,), (3, 64), (64, 128))),
    view("view of rows", lambda x: x.reshape(x.shape[1], x.shape[0]), MATRICES),
    view("unsqueeze", lambda x: x.unsqueeze(-1)),
    view("unsqueeze 0", lambda x: x.unsqueeze(0)),
    view("squeeze", torch.squeeze),
    view("expand", lambda x: x.expand(3, *x.shape)),
    view("expand inside", lambda x: x.unsqueeze(1).expand(-1, 4, *x.shape[1:])),
    view("broadcast_to", lambda x: torch.broadcast_to(x[..., :1], x.shape)),
    view("slice", lambda x: x[1:]),
    view("slice inside", lambda x: x[..., 1:-1], ((64,), (129, 3), (3, 1000), (2, 3, 5, 65))),
    view("slice of slices", lambda x: x[1:, 2:][:, 1:], ((129, 4), (63, 64), (65, 129))),
    view("steps", lambda x: x[..., ::3]),
    view("steps 0", lambda x: x[1::2]),
    view("select", lambda x: x[0]),
    view("select last", lambda x: x[..., -1]),
    view("select inside", lambda x: x.select(-1, x.shape[-1] // 2)),
    view("narrow", lambda x: x.narrow(-1, x.shape[-1] // 2, 1)),
    view("chunk", lambda x: x.chunk(2, -1)),
    view("split", lambda x: x.split(40, -1)),
    view("split sizes", lambda x: x.split([1, x.shape[0] - 1]), ((64,), (129, 3), (65, 129))),
    view("unbind", lambda x: x.unbind(-1), ((3,), (129, 3), (2, 3, 5))),
    view("tensor_split", lambda x: x.tensor_split(3, -1)),
    view("diagonal", lambda x: x.diagonal(), MATRICES),
    view("diagonal offset", lambda x: x.diagonal(1), ((129, 3), (63, 64), (65, 129))),
    view("movedim", lambda x: x.movedim(0, -1)),
    view("swapaxes", lambda x: x.swapaxes(0, -1)),
    view("unfold", lambda x: x.unfold(-1, 3, 2), ((64,), (129, 3), (3, 1000), (2, 3, 5, 65))),
    view(
        "as_strided",
        lambda x: x.clone().as_strided((x.shape[0], 2), (x.shape[1], 1), 1),
        ((129, 3), (63, 64), (65, 129)),
    ),
    view("T", lambda x: x.t(), MATRICES),
    view("mT", lambda x: x.mT, ((129, 3), (3, 1, 127), (2, 3, 5, 65))),
    row("clone", torch.clone, SHAPES + EMPTY),
    row("contiguous", lambda x: x.contiguous().clone(), SHAPES + EMPTY),
    row("cat", lambda x, y: torch.cat([x, y]), count=2),
    row("cat -1", lambda x, y: torch.cat([x, y], -1), count=2),
    row("cat three", lambda x, y: torch.cat([x, y[..., :1], x], -1), count=2),
    row("cat transposed", lambda x, y: torch.cat([x, y.t()], 0), ((3, 3), (64, 64), (65, 65)), 2),
    row("cat one", lambda x: torch.cat([x])),
    row("cat empty", lambda x: torch.cat([x, x[:0]])),
    row("stack", lambda x, y: torch.stack([x, y]), count=2),
    row("stack -1", lambda x, y: torch.stack([x, y], -1), count=2),
    row("pad", lambda x: F.pad(x, (3, 5))),
    row("pad rows", lambda x: F.pad(x, (0, 0, 1, 2), value=1), MATRICES),
    row("pad both", lambda x: F.pad(x, (1, 0, 0, 2), value=1), MATRICES),
    row("pad less", lambda x: F.pad(x, (-1, 2)), ((64,), (129, 3), (65, 129))),
    row("repeat", lambda x: x.repeat(2, *[1] * (x.dim() - 1))),
    row("repeat -1", lambda x: x.repeat(*[1] * (x.dim() - 1), 3)),
    row("repeat more", lambda x: x.repeat(2, *[1] * x.dim())),
    row("repeat_interleave", lambda x: x.repeat_interleave(3, 0)),
    row("tile", lambda x: x.tile(2)),
    row("roll", lambda x: x.roll(1)),
    row("roll 0", lambda x: x.roll(2, 0)),
    row("roll both", lambda x: x.roll((1, -3), (0, 1)), MATRICES),
    row("tril", torch.tril, MATRICES),
    row("triu", lambda x: x.triu(1), MATRICES),
    row("slice_scatter", lambda x, y: x.slice_scatter(y[1:], 0, 1), count=2, layouts=GAPLESS),
    row("slice_scatter steps", lambda x, y: x.slice_scatter(y[..., ::2], -1, 0, None, 2), count=2, layouts=GAPLESS),
    row("select_scatter", lambda x, y: x.select_scatter(y[0], 0, 0), count=2, layouts=GAPLESS),
    row("select_scatter -1", lambda x, y: x.select_scatter(y[..., 0], -1, -1), count=2, layouts=GAPLESS),
    row("diagonal_scatter", lambda x, y: x.diagonal_scatter(y.diagonal()), MATRICES, 2, layouts=GAPLESS),
    row(
        "meshgrid", lambda x, y: tuple(g.clone() for g in torch.meshgrid(x, y, indexing="ij")), ((3,), (65,), (64,)), 2
    ),
    row("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), ((1, 8, 3, 5), (2, 4, 8, 32))),
    *(cast(given, wanted) for given in DTYPES for wanted in DTYPES),
    made("zeros_like", torch.zeros_like),
    made("ones_like", torch.ones_like),
    made("full_like", lambda x: torch.full_like(x, 2)),
    made("new_zeros", lambda x: x.new_zeros(3, 5)),
    made("new_full", lambda x: x.new_full((3, 65), 1)),
    made("new_ones", lambda x: x.new_ones(x.shape)),
    made("arange", lambda x: torch.arange(x.shape[0], device=x.device) + 0),
    made("arange steps", lambda x: torch.arange(3, 70, 7, device=x.device) + 0),
    made("arange down", lambda x: torch.arange(10, -10, -3, device=x.device) + 0),
    made("arange float", lambda x: torch.arange(0, 4, 0.5, device=x.device) * 2),
    made("arange half", lambda x: torch.arange(65, device=x.device, dtype=torch.float16) * 2),
    made("full", lambda x: torch.full((3, 65), 1.5, device=x.device) * 2),
    made("eye", lambda x: torch.eye(65, device=x.device) * 2),
    made("zeros", lambda x: torch.zeros(3, 65, device=x.device) + 1),
    made("linspace", lambda x: torch.linspace(0, 8, 9, device=x.device) * 2),
    made("linspace of integers", lambda x: torch.linspace(4.3, 1, 50, dtype=torch.int32, device=x.device)),
]


def test_eager(case: Case) -> None:
    check(case)


def test_compiled(cases: list[Case]) -> None:
    check_together(cases)
