"""Programs from seeds."""

from __future__ import annotations

import random
from collections.abc import Callable

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
WEIGHTS = tuple(op.weight for op in OPS.values())
COMPILED = 0.15  # of all programs: compiling one takes as long as running many


def settings_of(seed: int) -> Settings:
    draw = random.Random(f"settings {seed}")
    return Settings(
        draw.choice(MODES), draw.choice(CORES), draw.choices(tuple(LX), (2, 1))[0], draw.random() < COMPILED
    )


class Drawing:
    """A program on its way: what each step gives is known before the next one is drawn."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sizes = self.rng.choices(PALETTES, PALETTE_WEIGHTS)[0]
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
        return fits[max(self.rng.randrange(len(fits)), self.rng.randrange(len(fits)))]

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
        return self.rng.choices(fits, [DTYPE_WEIGHTS[DTYPES.index(dtype)] for dtype in fits])[0]

    def start(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            rank = self.rng.choices((0, 1, 2, 3, 4), (1, 3, 8, 5, 1))[0]
            shape = tuple(self.rng.choice(self.sizes) for _ in range(rank))
            if rank == 4:
                shape = (*shape[:3], 2) if max(shape) < 65 else shape[:2]
            while len(shape) > 2 and sum(n > 60 for n in shape) > 1:
                shape = shape[1:]
            self.new(shape, self._dtype("any"))

    def step(self) -> None:
        """One more step, if the draw gives a valid one."""
        op = OPS[self.rng.choices(NAMES, WEIGHTS)[0]]
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


def generate(seed: int) -> Program:
    drawing, settings = Drawing(seed), settings_of(seed)
    drawing.start()
    count = drawing.rng.choice((drawing.rng.randint(3, 10), drawing.rng.randint(3, 18), drawing.rng.randint(3, 30)))
    for _ in range(40 * count):
        if len(drawing.steps) == count:
            break
        drawing.step()
    steps = tuple(drawing.steps)
    head = drawing.rng.randint(0, min(len(steps) // 2, 4))
    return without_unused_inputs(
        Program(settings, tuple(drawing.inputs), steps, head, _outputs(drawing, settings.compiled))
    )


def _outputs(drawing: Drawing, compiled: bool) -> tuple[str, ...]:
    """All results; of what is compiled those that nobody reads, and some others, so that the rest stays inside."""
    read = {name for step in drawing.steps for name in step.operands}
    return tuple(
        step.name for step in drawing.steps if not compiled or step.name not in read or drawing.rng.random() < 0.25
    )
