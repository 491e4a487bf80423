"""Coarse tiling: ops inside ``spyre_hint(num_tiles_per_dim={"M": 8})`` run eighth by eighth of M, one after the other.

Before: every op runs once over all of its points. After: the ops of a scope have the tile loop in front of their own,
and buffers that only they use are as small as one tile, so that they may stay in LX.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from ..errors import Unsupported
from ..loop_ir import Access, Buffer, Given, Kernel, LoopOp
from .name_dims import scopes

Tiling = tuple[tuple[int, str, int], ...]  # of nested loops, the outermost first: scope, dimension, tiles


def coarse_tile(kernel: Kernel) -> None:
    """Sets ``turns`` of the ops of a scope: the loops around them, whose counts come first in ``sizes``."""
    for tiling, group in groupby(range(len(kernel.ops)), key=lambda at: _tiling(kernel.ops[at])):
        if tiling:
            _tile(kernel, tiling, list(group))


def _is_backward(op: LoopOp) -> bool:
    return bool(op.hints.get("backward"))


def _tiling(op: LoopOp) -> Tiling:
    return tuple(
        (scope["scope"], name, count)
        for scope in scopes(op)
        for name, count in (scope.get("num_tiles_per_dim") or scope.get("tiles") or {}).items()
        if count > 1
    )


def _tile(kernel: Kernel, tiling: Tiling, inside: list[int]) -> None:
    local = _local(kernel, set(inside))
    tiled = {}
    for at in inside:
        op = kernel.ops[at]
        try:
            for scope, name, count in reversed(tiling):
                op = _split(op, name, count, scope)
        except Unsupported:
            if _is_backward(op):
                return
            raise
        tiled[at] = op
    for at, op in tiled.items():
        kernel.ops[at] = op
    for buffer in local:
        _shrink(kernel, buffer, inside, len(tiling))


def _split(op: LoopOp, name: str, tiles: int, scope: int) -> LoopOp:
    """The loop of that name in two, the outer one in front of all."""
    loops = [i for i, each in enumerate(op.names) if each == name and op.sizes[i] > 1]
    if len(loops) != 1:
        raise Unsupported(
            f"spyre_hint(num_tiles_per_dim={{{name!r}: {tiles}}}): {op.name} over {list(op.sizes)} "
            f"{'has no dimension of this name' if not loops else 'runs along it with several loops'}"
            f"{_where(op)}; name the dimensions inside the scope with named_dims=[...]"
        )
    (loop,) = loops
    if loop >= len(op.sizes) - op.reduced:
        raise Unsupported(
            f"spyre_hint(num_tiles_per_dim={{{name!r}: {tiles}}}): {op.name} folds it{_where(op)}; tiles of a "
            "folded dimension are no results"
        )
    if op.sizes[loop] % tiles:
        raise Unsupported(
            f"spyre_hint(num_tiles_per_dim={{{name!r}: {tiles}}}): {name} has {op.sizes[loop]} points in {op.name}"
            f"{_where(op)}, which {tiles} tiles do not divide"
        )
    points = op.sizes[loop] // tiles

    def sizes(given: tuple[int, ...]) -> tuple[int, ...]:
        return (tiles, *given[:loop], points, *given[loop + 1 :])

    def moved(access: Access) -> Access:
        return replace(access, strides=(access.strides[loop] * points, *access.strides))

    parameters = op.parameters
    if op.name == "iota":
        first, *steps = parameters
        step = steps[loop]
        assert not isinstance(step, Given)
        parameters = (first, step * points, *steps)
    return replace(
        op,
        sizes=sizes(op.sizes),
        out=moved(op.out),
        ins=tuple(moved(each) if isinstance(each, Access) else each for each in op.ins),
        parameters=parameters,
        turns=((scope, tiles), *op.turns),
        names=("", *op.names),
    )


def _where(op: LoopOp) -> str:
    return f" ({op.source})" if op.source else ""


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


def _shrink(kernel: Kernel, buffer: Buffer, inside: list[int], turns: int) -> None:
    """One tile of a buffer, where every access goes along its dimensions from their beginning."""
    accesses = [
        (op, access)
        for op in (kernel.ops[at] for at in inside)
        for access in (op.out, *op.ins)
        if isinstance(access, Access) and access.buffer == buffer.name
    ]
    tiles: dict[int, int] = {}  # by stride: how many tiles the dimension falls into
    for op, access in accesses:
        if access.offset or any(s and s not in buffer.stride for s in access.strides[turns:]):
            return
        for turn in range(turns):
            along = [
                i
                for i in range(turns, len(op.sizes))
                if access.strides[i] and access.strides[turn] == access.strides[i] * op.sizes[i]
            ]
            if access.strides[turn]:
                if not along:
                    return
                tiles[access.strides[along[0]]] = op.sizes[turn]
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
        own = [new.get(s, 0) if n > 1 else 0 for n, s in zip(op.sizes[turns:], access.strides[turns:], strict=True)]
        return replace(access, strides=(*([0] * turns), *own))

    for at in inside:
        op = kernel.ops[at]
        ins = tuple(shrunk(op, each) if isinstance(each, Access) else each for each in op.ins)
        kernel.ops[at] = replace(op, out=shrunk(op, op.out), ins=ins)
