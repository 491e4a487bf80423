"""OpSpec: what the front end hands to the emitters. It is what a person reads first when something is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sympy

from .._C import DataFormats


class IndirectAccess(sympy.Function):
    """``IndirectAccess(arg2)``: the value of argument 2 at this point supplies the coordinate."""


@dataclass
class TensorArg:
    """A tensor of an op on the card: its shape there, and where each point of the iteration space lies in it.

    ``device_coordinates`` has one expression over the iteration symbols per device dimension. They are affine, but for
    one symbol at most: along the stick dimension ``c`` they are ``floor(c/E)`` and ``Mod(c, E)``.
    """

    is_input: bool
    arg_index: int  # of the kernel's arguments; -1 when `allocation` says where it is
    device_dtype: DataFormats
    device_size: list[int]
    device_coordinates: list[sympy.Expr]
    allocation: dict[str, int] = field(default_factory=dict)  # {} device memory, {"lx": address}, {"pool": offset}


@dataclass
class OpSpec:
    """One operation over one iteration space, divided over cores.

    ``args`` are the inputs in order, then the output. ``op_info``: "constants" {input position: value} for inputs that
    are numbers (they have no TensorArg), "parameters" [numbers of the op itself], "reduced" [names of folded symbols],
    "bounds" {position in args of an index tensor: extent}, "checked", "source", "formats" {position: DataFormats} of constants.
    """

    op: str
    is_reduction: bool
    iteration_space: dict[sympy.Symbol, tuple[int, int]]  # symbol: (range, cores)
    args: list[TensorArg]
    op_info: dict[str, Any] = field(default_factory=dict)


@dataclass
class LoopSpec:
    """``count`` repetitions of ``body``; ``tiled_symbols`` names what moves on from one to the next."""

    count: int
    body: list[OpSpec | LoopSpec]
    tiled_symbols: list[sympy.Symbol] = field(default_factory=list)
