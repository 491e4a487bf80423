"""Types of KTIR."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .affine import IntegerSet

DYNAMIC = -1  # a size that is known at run time
SCALARS = ("f16", "bf16", "f32", "i1", "i8", "i16", "i32", "i64", "index")
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "index": 8}
MOST_RANK = 8


def _sizes(shape: tuple[int, ...]) -> str:
    return "".join("?x" if n == DYNAMIC else f"{n}x" for n in shape)


@dataclass(frozen=True)
class Scalar:
    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.name in ("f16", "bf16", "f32")


@dataclass(frozen=True)
class Tensor:
    """A data tile in a core's scratchpad."""

    shape: tuple[int, ...]
    element: Scalar

    def __str__(self) -> str:
        return f"tensor<{_sizes(self.shape)}{self.element}>"

    @property
    def static(self) -> bool:
        return DYNAMIC not in self.shape

    @property
    def bytes(self) -> int:
        return prod(self.shape) * BYTES[self.element.name]


@dataclass(frozen=True)
class MemRef:
    """A view of memory; ``rest`` is what follows the element type, as it was written."""

    shape: tuple[int, ...]
    element: Scalar
    rest: str = ""

    def __str__(self) -> str:
        return f"memref<{_sizes(self.shape)}{self.element}{self.rest}>"


@dataclass(frozen=True)
class AccessTile:
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"!ktdp.access_tile<{_sizes(self.shape)}index>"


@dataclass(frozen=True)
class Future:
    """Partial results under way from tiles to tiles, by groups."""

    element: Type
    groups: IntegerSet | None = None

    def __str__(self) -> str:
        return f"!ktdp.tile_future<{self.element}{f', groups = {self.groups}' if self.groups else ''}>"


@dataclass(frozen=True)
class RuntimeArgument:
    element: Scalar
    granularity: int = 1
    upper_bound: int = DYNAMIC

    def __str__(self) -> str:
        bound = f", upperbound = {self.upper_bound}" if self.upper_bound != DYNAMIC else ""
        return f"!ktdp.runtime_arg<{self.element}, granularity = {self.granularity}{bound}>"


@dataclass(frozen=True)
class Function:
    inputs: tuple[Type, ...]
    results: tuple[Type, ...]

    def __str__(self) -> str:
        results = ", ".join(map(str, self.results))
        return f"({', '.join(map(str, self.inputs))}) -> ({results})"


Type = Scalar | Tensor | MemRef | AccessTile | Future | RuntimeArgument | Function

INDEX, I1, F16, F32 = Scalar("index"), Scalar("i1"), Scalar("f16"), Scalar("f32")


def element_of(of: Type) -> Scalar:
    """The type of one element of a tile, or the type itself."""
    if isinstance(of, Tensor | MemRef | RuntimeArgument):
        return of.element
    if isinstance(of, Scalar):
        return of
    raise ValueError(f"{of} has no elements")


def with_element(of: Type, element: Scalar) -> Type:
    return Tensor(of.shape, element) if isinstance(of, Tensor) else element
