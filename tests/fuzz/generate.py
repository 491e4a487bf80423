"""Programs from seeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from tests.fuzz.bounds import Invalid, Ref
from tests.fuzz.ops import DTYPES, OPS
from tests.fuzz.program import CORES, LX, MODES, Input, Program, Settings, Step, without_unused_inputs
from tests.fuzz.reference import Reference

# Sizes that meet in one program; few, so that programs share kernels.
PALETTES = ((3, 65), (5, 64, 2), (7, 130), (2, 3, 33), (1, 63, 4), (127, 4), (1, 2, 3), (70, 6), (64, 64), (0, 3, 5))
PALETTE_WEIGHTS = (4, 4, 3, 4, 3, 3, 3, 3, 2, 1)
LAYOUTS = ("plain", "transposed", "sliced", "strided", "rows", "sparse", "first")
DTYPE_WEIGHTS = (5, 2, 4, 2, 1, 1)
FAMILIES: dict[str, Callable[[Ref], bool]] = {
    "any": lambda ref: True,
    "float": lambda ref: ref.real,
    "number": lambda ref: str(ref.dtype) != "torch.bool",
    "int": lambda ref: not ref.real and str(ref.dtype) != "torch.bool",
    "discrete": lambda ref: not ref.real,
    **{dtype: lambda ref, dtype=dtype: str(ref.dtype) == f"torch.{dtype}" for dtype in DTYPES},
}
OF_FAMILY = {
    "any": DTYPES,
    "float": DTYPES[:3],
    "number": DTYPES[:5],
    "int": DTYPES[3:5],
    "discrete": DTYPES[3:],
    **{dtype: (dtype,) for dtype in DTYPES},
}
NAMES = tuple(OPS)

# What blocks of models are made of, in sizes that many cores share: plans have something to decide about.
PLANNED_OPS = {
    **{"add": 3, "sub": 1, "mul": 3, "maximum": 1, "div": 0.5, "add number": 1, "mul number": 2, "addcmul": 1},
    **{"exp": 1, "tanh": 1, "sigmoid": 1, "silu": 1, "gelu": 1, "relu": 1, "rsqrt": 0.3, "square": 0.5, "clamp": 0.7},
    **{"where": 0.7, "to": 1, "sum": 2, "mean": 1, "amax": 1, "var": 0.7, "logsumexp": 0.5, "argmax": 0.2},
    **{"softmax": 2, "log_softmax": 0.5, "layer_norm": 1, "layer_norm affine": 1, "rms_norm": 1, "cumsum": 0.3},
    **{"matmul": 3, "bmm": 1, "linear": 2, "addmm": 1, "gram": 1, "conv1d": 0.2},
    **{"transpose": 2, "permute": 1, "slice": 2, "reshape": 1, "expand": 1, "cat": 1.5, "contiguous": 1, "chunk": 0.7},
    **{"flip": 0.3, "index_select": 0.4, "gather": 0.3, "embedding": 0.3, "scatter_add": 0.3},
    **{"add_": 1, "mul_": 1, "copy_": 1, "relu_": 0.5, "set slice": 1},
}
PLANNED_PALETTES = ((256, 130), (96, 64, 2), (300, 70), (33, 128, 4), (512, 64), (7, 200, 3), (64, 320), (2, 31, 65))


@dataclass(frozen=True)
class Taste:
    """What programs are drawn from."""

    palettes: tuple[tuple[int, ...], ...]
    palette_weights: tuple[float, ...]
    op_weights: tuple[float, ...]  # as in NAMES
    dtype_weights: tuple[float, ...]  # as in DTYPES
    rank_weights: tuple[float, ...]  # of the first inputs, from 0 on
    fits: Callable[[tuple[int, ...]], bool]  # whether a first input may be of this shape
    choices: int = 1  # of operands, of which the largest is taken


def _is_narrow(shape: tuple[int, ...]) -> bool:
    return sum(n > 60 for n in shape) < 2


EVERYTHING = Taste(
    PALETTES, PALETTE_WEIGHTS, tuple(op.weight for op in OPS.values()), DTYPE_WEIGHTS, (1, 3, 8, 5, 1), _is_narrow
)
PLANNED = Taste(
    PLANNED_PALETTES,
    (1,) * len(PLANNED_PALETTES),
    tuple(PLANNED_OPS.get(name, 0.02 * op.weight) for name, op in OPS.items()),
    (6, 1, 3, 0.3, 0.2, 0.3),
    (0, 1, 8, 5, 1),
    lambda shape: prod(shape) <= 1 << 15,
    choices=2,
)
COMPILED = 0.15  # of all programs: compiling one takes as long as running many


def settings_of(seed: int, plans: str = "") -> Settings:
    if plans:
        return Settings(MODES[seed % len(MODES)], compiled=True, plans=plans)
    draw = random.Random(f"settings {seed}")
    return Settings(
        draw.choice(MODES), draw.choice(CORES), draw.choices(tuple(LX), (2, 1))[0], draw.random() < COMPILED
    )


class Drawing:
    """A program on its way: what each step gives is known before the next one is drawn."""

    def __init__(self, seed: int, taste: Taste = EVERYTHING) -> None:
        self.rng = random.Random(seed)
        self.taste = taste
        self.sizes = self.rng.choices(taste.palettes, taste.palette_weights)[0]
        self.reference = Reference()
        self.inputs: list[Input] = []
        self.steps: list[Step] = []

    def ref(self, name: str) -> Ref:
        return self.reference.refs[name]

    def pick(self, family: str = "any", test: Callable[[Ref], bool] = lambda ref: True) -> str:
        fits = [name for name, ref in self.reference.refs.items() if FAMILIES[family](ref) and test(ref)]
        if not fits:
            raise Invalid("no such tensor")
        # Later ones more often: programs become deep, not wide.
        late = [
            fits[max(self.rng.randrange(len(fits)), self.rng.randrange(len(fits)))] for _ in range(self.taste.choices)
        ]
        return max(late, key=lambda name: self.ref(name).value.numel())

    def mate(self, shape: tuple[int, ...], family: str = "any", same: bool = False) -> str:
        """A tensor that broadcasts to a shape, or has that very one."""

        def fits(ref: Ref) -> bool:
            if same:
                return tuple(ref.shape) == tuple(shape)
            pairs = zip(reversed(ref.shape), reversed(shape), strict=False)
            return len(ref.shape) <= len(shape) and all(n in (1, m) for n, m in pairs)

        if self.rng.random() < 0.6:
            try:
                return self.pick(family, fits)
            except Invalid:
                pass
        size = list(shape)
        if not same:
            size = [1 if self.rng.random() < 0.2 else n for n in size][self.rng.choice((0, 0, 0, 1)) :]
        return self.new(tuple(size), self._dtype(family))

    def new(self, shape: tuple[int, ...], dtype: str, kind: str | None = None, high: int = 0) -> str:
        layout = "plain"
        if kind is None:
            kind = self.rng.choice(("whole", "whole", "quarters", "real", "real", "positive", "small"))
            layout = self.rng.choice(("plain", self.rng.choice(LAYOUTS)))
        if not shape or 0 in shape:
            layout = "plain"
        given = Input(f"a{len(self.inputs)}", tuple(shape), dtype, kind, self.rng.randrange(4), layout, high)
        self.reference.add_input(given)
        self.inputs.append(given)
        return given.name

    def _dtype(self, family: str) -> str:
        fits = OF_FAMILY[family]
        return self.rng.choices(fits, [self.taste.dtype_weights[DTYPES.index(dtype)] for dtype in fits])[0]

    def start(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            rank = self.rng.choices((0, 1, 2, 3, 4), self.taste.rank_weights)[0]
            shape = tuple(self.rng.choice(self.sizes) for _ in range(rank))
            if rank == 4:
                shape = (*shape[:3], 2) if max(shape) < 65 else shape[:2]
            while len(shape) > 2 and not self.taste.fits(shape):
                shape = shape[1:]
            self.new(shape, self._dtype("any"))

    def step(self) -> None:
        """One more step, if the draw gives a valid one."""
        op = OPS[self.rng.choices(NAMES, self.taste.op_weights)[0]]
        inputs = len(self.inputs)
        try:
            operands, parameters = op.draw(self)
            step = Step(f"v{len(self.steps)}", op.name, tuple(operands), parameters)
            self.reference.add_step(step)
            self.steps.append(step)
        except Invalid:
            for given in self.inputs[inputs:]:
                del self.reference.refs[given.name], self.reference.native[given.name]
            del self.inputs[inputs:]


def generate(seed: int, plans: str = "") -> Program:
    """With ``plans`` another program: of fewer ops on larger tensors, some with hints, to be compiled in many ways."""
    drawing, settings = Drawing(seed, PLANNED if plans else EVERYTHING), settings_of(seed, plans)
    drawing.start()
    count = drawing.rng.choice((drawing.rng.randint(3, 10), drawing.rng.randint(3, 18), drawing.rng.randint(3, 30)))
    for _ in range(40 * count):
        if len(drawing.steps) == count:
            break
        drawing.step()
    head = drawing.rng.randint(0, min(len(drawing.steps) // 2, 4))
    if plans:
        _give_hints(drawing, head)
    steps = tuple(drawing.steps)
    return without_unused_inputs(
        Program(settings, tuple(drawing.inputs), steps, head, _outputs(drawing, settings.compiled))
    )


def _outputs(drawing: Drawing, compiled: bool) -> tuple[str, ...]:
    """All results; of what is compiled those that nobody reads, and some others, so that the rest stays inside."""
    read = {name for step in drawing.steps for name in step.operands}
    return tuple(
        step.name for step in drawing.steps if not compiled or step.name not in read or drawing.rng.random() < 0.25
    )


def _give_hints(drawing: Drawing, head: int) -> None:
    """Tiles around a run of steps whose results have as many rows, or cores for the dimensions of one result.

    Whether they can be met is for the compiler to say.
    """
    rng, steps = drawing.rng, drawing.steps
    if rng.random() < 0.4 or head == len(steps):
        return
    begin = rng.randrange(head, len(steps))
    shape = tuple(drawing.ref(steps[begin].name).shape)
    if not shape:
        return
    names = [f"d{i}" for i in range(len(shape))]
    if rng.random() < 0.35:
        cores = {name: rng.choice((2, 3, 4, 8)) for name in rng.sample(names, min(len(names), rng.choice((1, 1, 2))))}
        steps[begin] = replace(steps[begin], hint=f"named_dims={[*names, 'k']}, work_div={cores}")
        return
    tiles = rng.choice([n for n in range(2, 9) if shape[0] % n == 0] or [1])
    end = begin + 1
    while end < len(steps) and end - begin < 5 and _has_rows(drawing, steps[end], shape):
        end += 1
    for at in range(begin, end):
        steps[at] = replace(steps[at], hint=f"named_dims={names}, num_tiles_per_dim={{'d0': {tiles}}}")


def _has_rows(drawing: Drawing, step: Step, shape: tuple[int, ...]) -> bool:
    mine = drawing.ref(step.name).shape
    return len(mine) == len(shape) and mine[0] == shape[0]
