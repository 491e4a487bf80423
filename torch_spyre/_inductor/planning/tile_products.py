"""Products whose results overflow the accumulators run in tiles of columns, with the ops that go on with them.

Before: a product makes more results per core than the accumulators hold, and its operands are read again for each block
of them. After: product, activation and whatever follows point by point have a tile loop around them, where that is
faster by the clock's constants. A product by itself is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log2, sqrt

from ...card import description
from ..errors import Unsupported
from ..layout.device_ir import Plan
from ..loop_ir import Access, Kernel, LoopOp
from ..loop_ir.tile_loops import check_tiles, tile

COLUMNS = "columns"
SCOPES = 1 << 20  # numbers of these loops: hints have smaller ones
STICK = 64  # elements; of fp16


@dataclass
class _Group:
    """A product and the ops behind it that go along the same columns, in order."""

    first: int
    loops: list[int]  # by op: the loop over the columns
    made: dict[str, int]  # buffers that they make: the stride of a column

    @property
    def inside(self) -> list[int]:
        return list(range(self.first, self.first + len(self.loops)))


def tile_products(plan: Plan) -> None:
    """Adds tile loops to ``plan.kernel.ops``."""
    kernel, cores = plan.kernel, plan.cores
    for number, group in enumerate(list(_groups(kernel))):
        tiles = _tiles(kernel, kernel.ops[group.first], cores)
        if tiles < 2 or len(group.loops) == 1:
            continue
        before = [kernel.ops[at] for at in group.inside]
        for at, loop in zip(group.inside, group.loops, strict=True):
            op = kernel.ops[at]
            names = tuple(COLUMNS if i == loop else "" for i in range(len(op.sizes)))
            kernel.ops[at] = replace(op, names=names)
        try:
            check_tiles(kernel, group.inside, COLUMNS, tiles)
        except Unsupported:
            kernel.ops[group.first : group.first + len(before)] = before
        else:
            tile(kernel, ((SCOPES + number, COLUMNS, tiles),), group.inside)


def _groups(kernel: Kernel) -> Iterator[_Group]:
    at = 0
    while at < len(kernel.ops):
        group = _group(kernel, at)
        if group is not None:
            yield group
        at += len(group.loops) if group is not None else 1


def _group(kernel: Kernel, first: int) -> _Group | None:
    product = kernel.ops[first]
    if not _is_plain_product(product):
        return None
    columns = len(product.sizes) - 2
    group = _Group(first, [columns], {product.out.buffer: product.out.strides[columns]})
    for op in kernel.ops[first + 1 :]:
        if _is_plain_product(op) and op.sizes == product.sizes:
            loop: int | None = columns
        else:
            loop = _loop_along(op, group.made, product.sizes[columns])
        if loop is None or op.hints or op.tile_loops:
            break
        group.loops.append(loop)
        group.made[op.out.buffer] = op.out.strides[loop]
    while len(group.loops) > 1 and kernel.ops[group.inside[-1]].row.is_matmul:  # nothing goes on with it
        group.loops.pop()
    return group


def _is_plain_product(op: LoopOp) -> bool:
    return op.row.is_matmul and len(op.sizes) == 3 and not op.tile_loops and not op.hints


def _loop_along(op: LoopOp, made: dict[str, int], columns: int) -> int | None:
    """The loop of a pointwise op that goes along the columns of what the group has made."""
    read = [each for each in op.ins if isinstance(each, Access) and each.buffer in made]
    if not op.row.is_pointwise or op.row.is_move or not read:
        return None
    for loop, n in enumerate(op.sizes):
        if n == columns and op.out.strides[loop] and all(each.strides[loop] == made[each.buffer] for each in read):
            return loop
    return None


def _tiles(kernel: Kernel, op: LoopOp, cores: int) -> int:
    """How many tiles: as few as fit the accumulators and share sticks evenly; 1 where it does not pay."""
    card = description.constants()
    m, n, k = op.sizes
    overflow = m * n / cores / card["pt_area"]
    if overflow <= 1 or kernel.buffers[op.out.buffer].dtype.itemsize != 2:
        return 1
    sticks = n // STICK if n % STICK == 0 else 0
    fitting = [t for t in range(2, sticks + 1) if sticks % t == 0 and t >= overflow]
    even = [t for t in fitting if sticks // t % card["multicast_cores"] == 0]
    tiles = min(even or fitting, default=1)
    spilled = min(1.0, log2(overflow)) * sqrt(k / card["pt_spill_depth"])
    saved = 2 * m * n * card["pt_spill_ns"] * spilled
    again = (tiles - 1) * 2 * m * k / card["dram_gb_per_s"] + tiles * 1000 * card["turn_fixed_us"]
    return tiles if saved > again else 1
