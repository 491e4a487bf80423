"""A tiling: which ops get tile loops, and the kernel with these loops around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ..loop_ir import Kernel, LoopOp
from ..loop_ir.tile_loops import check_tiles, tile
from .chains import Chain


@dataclass(frozen=True)
class Tiling:
    """Loops around a run of ops, the outermost first: a chain and the number of its tiles."""

    loops: tuple[tuple[Chain, int], ...]

    @property
    def iterations(self) -> int:
        return prod(count for _, count in self.loops)

    @property
    def inside(self) -> list[int]:
        """The ops that get the loops, by position."""
        return sorted(self.loops[0][0].loops)

    def within(self, first: int, last: int) -> Tiling:
        return Tiling(tuple((chain.within(first, last), count) for chain, count in self.loops))

    def moved(self, by: int) -> Tiling:
        return Tiling(tuple((chain.moved(by), count) for chain, count in self.loops))


def add_tile_loops(kernel: Kernel, tiling: Tiling, scope: int) -> None:
    """Puts the loops of a tiling around its ops; ``scope`` numbers the outermost. Raises Unsupported where what one
    tile makes another would read."""
    chains = [chain for chain, _ in tiling.loops]
    inside, before = tiling.inside, sorted(chains[0].before)
    names = [f"{number}" for number in range(len(chains))]
    tiles = tuple(
        (scope + i, name, count) for i, (name, (_, count)) in enumerate(zip(names, tiling.loops, strict=True))
    )
    ops = []
    for at in inside:
        of_loop = {chain.loops[at]: name for chain, name in zip(chains, names, strict=True)}
        ops.append(replace(kernel.ops[at], names=tuple(of_loop.get(i, "") for i in range(len(kernel.ops[at].sizes)))))
    first, last = inside[0], inside[-1]
    kernel.ops[first : last + 1] = [*(kernel.ops[at] for at in before), *ops]
    positions = list(range(first + len(before), last + 1))
    for _, name, count in tiles:
        check_tiles(kernel, positions, name, count)
    for at in positions:
        _cut_buffer(kernel, kernel.ops[at])
    tile(kernel, tiles, positions)


def split_inside(tiling: Tiling, whole: list[LoopOp], split: list[LoopOp]) -> list[LoopOp]:
    """The ops of a tiling with their loops split, all others as they were."""
    inside = set(tiling.inside)
    return [split[at] if at in inside else whole[at] for at in range(len(whole))]


def _cut_buffer(kernel: Kernel, op: LoopOp) -> None:
    """What an op makes gets a dimension for every loop that will be tiled."""
    buffer = kernel.buffers[op.out.buffer]
    if buffer.kind != "internal" or buffer.order is not None:
        return
    dims = list(zip(buffer.size, buffer.stride, strict=True))
    for name, n, stride in zip(op.names, op.sizes, op.out.strides, strict=True):
        for unit in (stride, stride * n) if name and n > 1 else ():
            dims = [part for dim in dims for part in _cut(*dim, unit)]
    size, strides = zip(*dims, strict=True) if dims else ((), ())
    kernel.buffers[buffer.name] = replace(buffer, size=size, stride=strides)


def _cut(n: int, stride: int, unit: int) -> list[tuple[int, int]]:
    """A dimension as two, if ``unit`` is where the outer one of them moves by one."""
    inner = unit // stride if stride > 0 else 0
    if inner * stride == unit and 1 < inner < n and n % inner == 0:
        return [(n // inner, unit), (inner, stride)]
    return [(n, stride)]
