"""Tile loops: loops around a run of ops, each of whose iterations computes one tile of every result.

Buffers that only these ops use shrink to one tile. No tile may read what another tile makes, because the tiles of all
ops run one after the other: :func:`check_tiles` refuses that.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import Unsupported
from .ir import Access, Buffer, Kernel, LoopOp

Tiling = tuple[tuple[int, str, int], ...]  # of nested loops, the outermost first: scope, dimension, tiles


def tile(kernel: Kernel, tiling: Tiling, inside: list[int]) -> None:
    """Puts the loops around ops that passed :func:`check_tiles`, and makes what only they use as small as a tile."""
    local = _local(kernel, set(inside))
    for at in inside:
        for scope, name, count in reversed(tiling):
            kernel.ops[at] = _split(kernel.ops[at], name, count, scope)
    for buffer in local:
        _shrink(kernel, buffer, inside, len(tiling))


def check_tiles(kernel: Kernel, inside: list[int], name: str, tiles: int) -> None:
    """Raises Unsupported where an op cannot run in these tiles, or needs what another tile makes."""
    hint = f"spyre_hint(num_tiles_per_dim={{{name!r}: {tiles}}})"
    ops = [kernel.ops[at] for at in inside]
    made: dict[str, tuple[int, int]] = {}  # by buffer that they write: how far its rows lie apart, how many there are
    for op in ops:
        loop = _loop(op, name, hint)
        if op.sizes[loop] % tiles:
            points = f"{op.sizes[loop]} points in {op.name}{op.where()}"
            raise Unsupported(f"{hint}: {name} has {points}, which {tiles} tiles do not divide")
        made.setdefault(op.out.buffer, (op.out.strides[loop], op.sizes[loop]))
    for op in ops:
        loop = _loop(op, name, hint)
        touched = [each for each in (op.out, *op.ins) if isinstance(each, Access) and each.buffer in made]
        if not all(_keeps_to_its_row(op, each, loop, *made[each.buffer]) for each in touched):
            raise Unsupported(
                f"{hint}: {op.name} over {list(op.sizes)}{op.where()} needs what other tiles make; "
                "leave it, or what it reads, out of the scope"
            )


def _keeps_to_its_row(op: LoopOp, access: Access, loop: int, step: int, rows: int) -> bool:
    """Whether point m of a loop touches row m of a buffer, whose ``rows`` lie ``step`` apart, and no other row."""
    if access.strides[loop] != step or op.sizes[loop] != rows or step < 1:
        return False
    if op.indirect and access is (op.out if op.row.is_scatter else op.ins[0]):  # an index leads anywhere
        return False
    inner = access.offset % step
    for i, (n, stride) in enumerate(zip(op.sizes, access.strides, strict=True)):
        if i == loop or n == 1 or not stride:
            continue
        if 0 < stride < step:
            inner += (n - 1) * stride
        elif stride % (step * rows):
            return False
    return inner < step and access.offset // step % rows == 0


def _loop(op: LoopOp, name: str, hint: str) -> int:
    """The loop of that name."""
    loops = [i for i, each in enumerate(op.names) if each == name and op.sizes[i] > 1]
    if len(loops) != 1:
        raise Unsupported(
            f"{hint}: {op.name} over {list(op.sizes)} "
            f"{'has no dimension of this name' if not loops else 'runs along it with several loops'}"
            f"{op.where()}; name the dimensions inside the scope with named_dims=[...]"
        )
    if loops[0] >= len(op.sizes) - op.reduced:
        raise Unsupported(f"{hint}: {op.name} folds it{op.where()}; tiles of a folded dimension are no results")
    causal = op.row.is_attention and op.parameters[1] and loops[0] == len(op.sizes) - 4
    if op.row.is_iota or causal:
        raise Unsupported(f"{hint}: {op.name}, which counts positions{op.where()}, does not run in tiles")
    return loops[0]


def _split(op: LoopOp, name: str, tiles: int, scope: int) -> LoopOp:
    """The loop of that name in two, the outer one in front of all."""
    loop = op.names.index(name)
    points = op.sizes[loop] // tiles

    def sizes(given: tuple[int, ...]) -> tuple[int, ...]:
        return (tiles, *given[:loop], points, *given[loop + 1 :])

    def moved(access: Access) -> Access:
        return replace(access, strides=(access.strides[loop] * points, *access.strides))

    return replace(
        op,
        sizes=sizes(op.sizes),
        out=moved(op.out),
        ins=tuple(moved(each) if isinstance(each, Access) else each for each in op.ins),
        tile_loops=((scope, tiles), *op.tile_loops),
        names=(f"tiles of {name}", *op.names),
    )


def _local(kernel: Kernel, inside: set[int]) -> list[Buffer]:
    """Buffers that nothing outside uses and that are written before they are read."""
    outside: set[str] = set()
    written: dict[str, None] = {}
    for at, op in enumerate(kernel.ops):
        if at not in inside:
            outside |= {op.out.buffer, *op.reads()}
            continue
        outside |= {name for name in op.reads() if name not in written}
        written[op.out.buffer] = None
    return [kernel.buffers[name] for name in written if name not in outside and _is_internal(kernel, name)]


def _is_internal(kernel: Kernel, name: str) -> bool:
    return kernel.buffers[name].kind == "internal"


def _shrink(kernel: Kernel, buffer: Buffer, inside: list[int], depth: int) -> None:
    """One tile of a buffer, where every access goes along its dimensions from their beginning."""
    accesses = [
        (op, access)
        for op in (kernel.ops[at] for at in inside)
        for access in (op.out, *op.ins)
        if isinstance(access, Access) and access.buffer == buffer.name
    ]
    tiles: dict[int, int] = {}  # by stride: how many tiles the dimension falls into
    for op, access in accesses:
        moving = [s for n, s in zip(op.sizes[depth:], access.strides[depth:], strict=True) if n > 1 and s]
        if access.offset or not set(moving) <= set(buffer.stride):
            return
        for outer in range(depth):
            along = [
                i
                for i in range(depth, len(op.sizes))
                if access.strides[i] and access.strides[outer] == access.strides[i] * op.sizes[i]
            ]
            if access.strides[outer]:
                if not along:
                    return
                tiles[access.strides[along[0]]] = op.sizes[outer]
    size = tuple(n // tiles.get(s, 1) if n > 1 else n for n, s in zip(buffer.size, buffer.stride, strict=True))
    strides = [0] * len(size)
    step = 1
    for dim in sorted(range(len(size)), key=lambda d: (buffer.stride[d], -d)):
        strides[dim] = step
        step *= max(size[dim], 1)
    new = {old: mine for old, mine, n in zip(buffer.stride, strides, size, strict=True) if n > 1}
    kernel.buffers[buffer.name] = replace(buffer, size=size, stride=tuple(strides))

    def shrunk(op: LoopOp, access: Access) -> Access:
        if access.buffer != buffer.name:
            return access
        own = [new.get(s, 0) if n > 1 else 0 for n, s in zip(op.sizes[depth:], access.strides[depth:], strict=True)]
        return replace(access, strides=(*([0] * depth), *own))

    for at in inside:
        op = kernel.ops[at]
        ins = tuple(shrunk(op, each) if isinstance(each, Access) else each for each in op.ins)
        kernel.ops[at] = replace(op, out=shrunk(op, op.out), ins=ins)
