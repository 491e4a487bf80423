"""The grid that op tests run over: rows (an op each) by shapes, dtypes, layouts of the inputs and core counts.

A test file is a table of rows and one test of ``case``. The full grid has a million points. `make test` takes a few of
each op: one of each dtype, no shape or layout twice, and over all ops every two values meet. `make nightly` adds two
sets: every op with every shape, layout and core count (six of each); and for each op its own set of all shapes and
layouts, in which every three values meet, one of them the op.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torch_spyre import _C
from torch_spyre._inductor import config
from torch_spyre.compare.error_bounds import accumulation, difference, inside, rounding, same, smallest

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
HALF = (torch.float16,)
INTEGERS = (torch.int64, torch.int32)
BOOL = (torch.bool,)
CORES = (1, 2, 5, 32)

Shape = tuple[int, ...]
Maker = Callable[[Shape, torch.dtype, torch.Generator], Tensor]
Bound = Callable[..., Any]  # of the reference's inputs: how far each result may be off, apart from its rounding

SHAPES: tuple[Shape, ...] = (
    (64,),
    (129, 3),
    (3, 1, 127),
    (1000,),
    (2, 3, 5, 65),
    (63, 64),
    (2, 1, 3, 2, 63),
    (1, 1),
    (2, 3, 1, 2, 3, 7),
)
EMPTY: tuple[Shape, ...] = ((), (0, 3), (3, 0))
FEW = ("plain", "transposed", "sliced", "expanded")  # layouts, where others of the table see the rest


# --- inputs


def real(low: float = -4, high: float = 4, of: Callable[[Shape], Sequence[int]] = tuple) -> Maker:
    """Numbers of the case's dtype in [low, high], of the case's shape or one made from it."""

    def make(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        size = tuple(of(shape))
        if dtype == torch.bool:
            return torch.randint(0, 2, size, generator=generator).bool()
        if not dtype.is_floating_point:
            return torch.randint(int(low), int(high) + 1, size, generator=generator, dtype=dtype)
        return (torch.rand(size, generator=generator) * (high - low) + low).to(dtype)

    return make


def ids(extent: int | Callable[[Shape], int], of: Callable[[Shape], Sequence[int]] = tuple, low: int = 0) -> Maker:
    """int64 indices in [low, extent)."""

    def make(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        high = extent(shape) if callable(extent) else extent
        return torch.randint(low, high, tuple(of(shape)), generator=generator)

    return make


def mask(of: Callable[[Shape], Sequence[int]] = tuple) -> Maker:
    def make(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        return torch.rand(tuple(of(shape)), generator=generator) < 0.5

    return make


def distinct(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Numbers that every dtype has, no two alike in a row or column."""
    number = torch.arange(torch.Size(shape).numel()).reshape(shape) * 337 % 1009
    return ((128 + number % 128) * 2.0 ** (number // 128 - 7)).to(dtype)


def numbers(*values: float) -> Maker:
    """The same few numbers again and again."""

    def make(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        count = torch.Size(shape).numel()
        return torch.tensor(values * (count // len(values) + 1), dtype=dtype)[:count].reshape(shape)

    return make


# --- layouts: the same values elsewhere; expanded ones are fewer


def _sliced(x: Tensor) -> Tensor:
    """Begins in the middle of a stick."""
    padded = torch.nn.functional.pad(x, (3, 5)) if x.dim() else torch.stack([x, x])
    return padded.to("spyre")[..., 3 : 3 + x.shape[-1]] if x.dim() else padded.to("spyre")[1]


def _ordered(x: Tensor, order: Sequence[int]) -> Tensor:
    return x.to("spyre", device_layout=torch.spyre.SpyreTensorLayout(list(x.shape), list(x.stride()), x.dtype, order))


def _expanded(x: Tensor) -> Tensor:
    return x[..., :1].to("spyre").expand(x.shape) if x.dim() else x.to("spyre")


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x.to("spyre"),
    "transposed": lambda x: x.t().contiguous().to("spyre").t() if x.dim() == 2 else _reversed(x),
    "sliced": _sliced,
    "strided": lambda x: torch.stack([x, x], -1).to("spyre")[..., 1],
    "rows": lambda x: torch.cat([x[:1], x]).to("spyre")[1:] if x.dim() else x.to("spyre"),
    "expanded": _expanded,
    "first in sticks": lambda x: _ordered(x, [*range(1, x.dim()), 0]) if x.dim() else x.to("spyre"),
    "sparse": lambda x: _ordered(x, [*range(x.dim()), -1]) if x.dim() else x.to("spyre"),
}


def _reversed(x: Tensor) -> Tensor:
    order = list(reversed(range(x.dim())))
    return x.permute(order).contiguous().to("spyre").permute(order)


# --- tolerances: the kind of an op, from which compare/error_bounds.py derives how far its result may be off


def exact(*inputs: Any) -> None:
    """No rounding at all."""


def element(*inputs: Any) -> float:
    """One rounding."""
    return 0.0


def total(function: Callable[..., Any], terms: Callable[..., int]) -> Bound:
    """A sum of ``terms`` products in fp32: the same of the absolute values bounds what its order may change."""

    def bound(*inputs: Any) -> Any:
        absolute = [x.abs() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
        return pytree.tree_map(lambda y: accumulation(terms(*inputs), y), function(*absolute))

    return bound


@dataclass(frozen=True)
class Row:
    """An op: a function of the tensors that ``inputs`` make.

    ``bound`` is :func:`exact`, :func:`element` (one rounding), or a function of the reference's inputs that says how
    far its result may be off besides one rounding; ``roundings`` are more where parts of it round too. ``apart``: when
    it compiles, PyTorch takes the op apart in another way, and the bits are not those that the op gives eagerly.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Maker, ...] = (real(),)
    bound: Bound = element
    dtypes: tuple[torch.dtype, ...] = FLOATS
    shapes: tuple[Shape, ...] = SHAPES
    layouts: tuple[str, ...] = tuple(LAYOUTS)
    roundings: int = 1
    apart: bool = False


@dataclass(frozen=True)
class Case:
    """A point of the grid."""

    row: Row
    shape: Shape
    dtype: torch.dtype
    layout: str
    cores: int

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        size = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.row.name}-{size}-{dtype}-{self.layout.replace(' ', '_')}-{self.cores}"

    def tensors(self) -> list[Tensor]:
        """The inputs, on the card."""
        generator = torch.Generator().manual_seed(len(str(self)))
        made = [make(self.shape, self.dtype, generator) for make in self.row.inputs]
        return [LAYOUTS[self.layout](x) for x in made]


@cache
def pairwise(counts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Points of a grid of these extents such that every two coordinates take every pair of values."""
    axes = list(combinations(range(len(counts)), 2))
    missing = {(i, a, j, b) for i, j in axes for a in range(counts[i]) for b in range(counts[j])}
    draw, chosen = random.Random(0), []
    # The two longest coordinates need all their pairs anyway: those come first, and take the others along.
    for i, a, j, b in sorted(missing, key=lambda pair: (-counts[pair[0]] * counts[pair[2]], pair)):
        if (i, a, j, b) in missing:
            points = [[draw.randrange(count) for count in counts] for _ in range(20)]
            for point in points:
                point[i], point[j] = a, b
            best = max(points, key=lambda p: sum((k, p[k], m, p[m]) in missing for k, m in axes))
            missing.difference_update((k, best[k], m, best[m]) for k, m in axes)
            chosen.append(tuple(best))
    return tuple(chosen)


def cases(rows: Sequence[Row], most: int) -> list[Case]:
    """Cases in which every two values meet, the row being one of them; of shapes and layouts, ``most`` of each."""
    kinds: dict[tuple, list[Row]] = {}
    for row in rows:
        kinds.setdefault((row.dtypes, spaced(row.shapes, most), spaced(row.layouts, most)), []).append(row)
    found = []
    for (dtypes, shapes, layouts), alike in kinds.items():
        for r, s, d, p, c in pairwise((len(alike), len(shapes), len(dtypes), len(layouts), len(CORES))):
            found.append(Case(alike[r], shapes[s], dtypes[d], layouts[p], CORES[c]))
    return found


def spaced(values: tuple, most: int) -> tuple:
    return tuple(values[i * len(values) // most] for i in range(most)) if len(values) > most else values


def sample(rows: Sequence[Row], least: int = 3) -> list[Case]:
    """A few cases of each row: every dtype, and shapes, layouts and core counts of which no two are alike.

    Rows of one kind share the grid: between them, every two of shape, dtype, layout and core count meet where there are
    rows enough.
    """
    kinds: dict[tuple, list[Row]] = {}
    for row in rows:
        kinds.setdefault((row.shapes, row.dtypes, row.layouts), []).append(row)
    found = []
    for axes, alike in kinds.items():
        met: Counter = Counter()
        draw = random.Random(0)
        for row in alike:
            mine: list[Case] = []
            for i in range(max(len(row.dtypes), least)):
                drawn = [[draw.choice(axis) for axis in (*axes, CORES)] for _ in range(50)]
                points = [Case(row, shape, row.dtypes[i % len(row.dtypes)], *rest) for shape, _, *rest in drawn]
                best = min(points, key=lambda case: (_repeats(case, mine), sum(met[pair] for pair in _pairs(case))))  # noqa: B023
                met.update(_pairs(best))
                mine.append(best)
            found += mine
    return found


def _pairs(case: Case) -> list[tuple]:
    return list(combinations(enumerate((case.shape, case.dtype, case.layout, case.cores)), 2))


def _repeats(case: Case, others: Sequence[Case]) -> int:
    """How many coordinates it shares with cases of the same row."""
    return sum((case.shape == o.shape) + (case.layout == o.layout) + (case.cores == o.cores) for o in others)


def parameters(rows: Sequence[Row], slow: bool = True) -> list[Any]:
    """pytest's parameters: the sample; and, if ``slow``, the rest marked so."""
    assert len({row.name for row in rows}) == len(rows), "rows need names of their own"
    few = {str(case): case for case in sample(rows)}
    quick = [pytest.param(case, id=name) for name, case in few.items()]
    if not slow:
        return quick
    wide = [*cases(rows, most=6), *(case for row in rows for case in cases([row], most=99))]
    rest = {str(case): case for case in wide if str(case) not in few}
    return [*quick, *(pytest.param(case, id=name, marks=pytest.mark.slow) for name, case in rest.items())]


def groups(rows: Sequence[Row], size: int = 12) -> list[Any]:
    """Rows in groups that are compiled together, with a case of each; every second of the first round is not slow."""
    found = []
    for turn in range(4):
        for at in range(0, len(rows), size):
            together = []
            for i, row in enumerate(rows[at : at + size], turn):
                shapes = [shape for shape in row.shapes if shape and 0 not in shape]
                shape, layout = shapes[(i + at // size) % len(shapes)], row.layouts[i % len(row.layouts)]
                together.append(Case(row, shape, row.dtypes[turn % len(row.dtypes)], layout, CORES[-1 - turn % 4]))
            marks = [pytest.mark.slow] if turn or at // size % 2 else []
            name = f"{together[0].row.name}..{together[-1].row.name}-{turn}"
            found.append(pytest.param(together, id=name, marks=marks))
    return found


# --- checks


def run(function: Callable[..., Any], inputs: Sequence[Tensor], cores: int, compiled: bool = False) -> list[Tensor]:
    """The results of a function on the card, with work divided over at most ``cores`` cores."""
    _C.forget_kernels()
    with config.patch(sencores=cores):
        if compiled:
            torch._dynamo.reset()
            function = torch.compile(function, fullgraph=True)
        return [x for x in pytree.tree_leaves(function(*inputs)) if x is not None]


def reference(row: Row, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor | None], list[Tensor]]:
    """What PyTorch gives on the host in fp64, how far one may be off, and tensors of the right shapes and dtypes."""
    given = [x.cpu() for x in inputs]
    wide = [x.double() if x.is_floating_point() else x for x in given]
    want = pytree.tree_leaves(row.function(*wide))
    like = pytree.tree_leaves(row.function(*(x.to("meta") for x in given)))
    extra = row.bound(*wide)
    extras = [extra] * len(want) if not isinstance(extra, tuple | list) else list(extra)
    bounds: list[Tensor | None] = []
    for y, shape, more in zip(want, like, extras, strict=True):
        if more is None or not shape.dtype.is_floating_point:
            bounds.append(None)
        else:
            off = rounding(y, shape.dtype, row.roundings) + more
            bounds.append(off.nan_to_num(0, 0, 0) + smallest(shape.dtype))
    return want, bounds, like


def compare(got: Sequence[Tensor], row: Row, inputs: Sequence[Tensor]) -> None:
    want, bounds, like = reference(row, inputs)
    assert len(got) == len(want)
    for g, w, bound, shape in zip(got, want, bounds, like, strict=True):
        assert g.device.type == "spyre" and g.dtype == shape.dtype and g.shape == shape.shape
        found = g.cpu()
        if bound is None:
            assert same(found, w.to(shape.dtype)), difference(found, w, torch.zeros(()))
        else:
            assert inside(found, w, bound).all(), difference(found, w, bound)


def check(case: Case) -> None:
    """The op gives what PyTorch gives, and the same bits with another number of cores."""
    inputs = case.tensors()
    got = run(case.row.function, inputs, case.cores)
    compare(got, case.row, inputs)
    again = run(case.row.function, inputs, 32 if case.cores < 32 else 1)
    assert all(same(a.cpu(), b.cpu()) for a, b in zip(got, again, strict=True)), "core counts differ in bits"


def check_together(cases: Sequence[Case]) -> None:
    """The ops in one compiled function give what each gives alone."""
    groups = [case.tensors() for case in cases]
    counts = [len(group) for group in groups]

    def together(*tensors: Tensor) -> list[Any]:
        results, at = [], 0
        for case, count in zip(cases, counts, strict=True):
            results.append(case.row.function(*tensors[at : at + count]))
            at += count
        return results

    got = run(together, [x for group in groups for x in group], cases[0].cores, compiled=True)
    for case, group in zip(cases, groups, strict=True):
        alone = run(case.row.function, group, case.cores)
        here, got = got[: len(alone)], got[len(alone) :]
        try:
            compare(here, case.row, group)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from None
        equal = all(same(a.cpu(), b.cpu()) for a, b in zip(here, alone, strict=True))
        assert equal or case.row.apart, f"{case}: not what it gives eagerly"
