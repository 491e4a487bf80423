"""The table of measured kernels, and the PyTorch program behind each of its rows."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._inductor import spyre_hint
from .._inductor.errors import Unsupported

PATH = Path(__file__).with_name("measured.csv")


@dataclass(frozen=True)
class Row:
    """One measured kernel; ``dims`` and ``config`` as the table's head explains them."""

    family: str
    op: str
    dims: str
    cores: int
    config: str
    us: float

    @property
    def sizes(self) -> list[int]:
        return [int(n) for n in self.dims.split("x")]

    @property
    def lx_planning(self) -> bool:
        return not self.config.startswith("lx0")

    def __str__(self) -> str:
        return f"{self.op} {self.dims}, {self.cores} cores{', ' + self.config if self.config else ''}"


def read(path: Path = PATH) -> list[Row]:
    """The rows that are scored. Raises ValueError naming the line that is none."""
    with path.open() as file:
        lines = [line for line in file if not line.startswith("#")]
    found = []
    for fields in csv.DictReader(lines):
        try:
            if fields["family"] == "info":
                continue
            row = Row(
                family=fields["family"],
                op=fields["op"],
                dims=fields["dims"],
                cores=int(fields["cores"]),
                config=fields["config"],
                us=float(fields["us"]),
            )
            row.sizes  # noqa: B018 - that they are numbers
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: this is no row of measured kernels: {fields} ({error})") from error
        found.append(row)
    return found


@dataclass(frozen=True)
class Program:
    """What was measured: a function of fp16 tensors. ``compiled`` is what it makes of it: one kernel, or several."""

    function: Callable[..., Any]
    sizes: list[tuple[int, ...]]
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]]


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, dynamic=False)


def _one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A chain of sums as kernels of their own, one after the other."""
    add = _whole(torch.add)
    return lambda *matrices: functools.reduce(add, matrices)


def program_of(row: Row) -> Program:
    """The row as PyTorch."""
    op = row.op
    if chain := re.fullmatch(r"add(\d+)(_sep)?", op):
        matrices = [tuple(row.sizes)] * int(chain[1])
        return Program(_add_all, matrices, _one_by_one if chain[2] else _whole)
    if op == "mm":
        m, k, n = row.sizes
        return Program(_product(row.config), [(m, k), (k, n)], _whole)
    if op == "softmax":
        return Program(_softmax(row.config), [tuple(row.sizes)], _whole)
    if op not in _PROGRAMS:
        raise Unsupported(f"the table's op {op} has no program here; there are {', '.join(sorted(_PROGRAMS))}")
    function, sizes = _PROGRAMS[op]
    return Program(function, sizes(*row.sizes), _whole)


def _add_all(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """All rows at once, as they were measured."""
    with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 1}):
        for other in others:
            first = first + other
        return first


def _product(config: str) -> Callable[..., Any]:
    """With the split that the table gives, or the compiler's own: "4x8x1" is that of M, N, K."""
    if not re.fullmatch(r"\d+x\d+x\d+", config):
        return torch.mm
    cores = dict(zip("MNK", map(int, config.split("x")), strict=True))

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with spyre_hint(named_dims=["M", "N", "K"], work_div=cores):
            return torch.mm(a, b)

    return product


def _softmax(config: str) -> Callable[..., Any]:
    """In as many tiles of rows as the table says, "tiles4"; all at once where it says nothing."""
    said = re.search(r"tiles(\d+)", config)
    tiles = int(said[1]) if said else 1

    def softmax(x: torch.Tensor) -> torch.Tensor:
        with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": tiles}):
            return torch.softmax(x, -1)

    return softmax


def _matrices(count: int) -> Callable[..., list[tuple[int, ...]]]:
    return lambda *size: [size] * count


_PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[..., list[tuple[int, ...]]]]] = {
    "neg": (torch.neg, _matrices(1)),
    "exp": (torch.exp, _matrices(1)),
    "gelu": (torch.nn.functional.gelu, _matrices(1)),
    "copy": (lambda x: x + 1.0, _matrices(1)),
    "add": (torch.add, _matrices(2)),
    "mul": (torch.mul, _matrices(2)),
    "add_indep2": (lambda a, b, c, d: (a + b, c + d), _matrices(4)),
    "bcast": (torch.add, lambda rows, columns: [(rows, columns), (columns,)]),
    "mulbcast": (torch.mul, lambda rows, columns: [(rows, columns), (columns,)]),
    "bcastcol": (torch.add, lambda rows, columns: [(rows, columns), (rows, 1)]),
    "write": (torch.add, lambda rows, columns: [(columns,), (rows, 1)]),
    "sumrow": (lambda x: x.sum(1), _matrices(1)),
    "amax": (lambda x: x.amax(1), _matrices(1)),
    "mean": (lambda x: x.mean(1), _matrices(1)),
    "sumcol": (lambda x: x.sum(0), _matrices(1)),
    "cat0": (lambda x: torch.cat([x, x], 0), _matrices(1)),
    "cat1": (lambda x: torch.cat([x, x], 1), _matrices(1)),
    "transpose": (lambda x: x.T.contiguous(), _matrices(1)),
    "transpose_outer": (lambda x: x.transpose(0, 1).contiguous(), _matrices(1)),
}
