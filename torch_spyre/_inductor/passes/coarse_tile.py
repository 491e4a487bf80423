"""Coarse tiling: ops inside ``spyre_hint(num_tiles_per_dim={"M": 8})`` run eighth by eighth of M, one after the other.

Before: every op runs once over all of its points. After: the ops of a scope have the tile loop in front of their own,
and buffers that only they use are as small as one tile, so that they may stay in LX. What one tile makes no other may
read: that is checked, since the tiles of all ops of a scope run one after the other.
"""

from __future__ import annotations

from itertools import groupby

from ..errors import Unsupported
from ..loop_ir import Kernel, LoopOp
from ..loop_ir.tile_loops import Tiling, check_tiles, tile


def coarse_tile(kernel: Kernel) -> None:
    """Sets ``tile_loops`` of the ops of a scope: the loops around them, whose counts come first in ``sizes``."""
    tilings = [_tiling(op) for op in kernel.ops]
    for depth in range(max(map(len, tilings), default=0)):
        for outer, group in groupby(range(len(tilings)), key=lambda at: tilings[at][: depth + 1]):
            inside = list(group)
            if len(outer) <= depth:
                continue
            try:
                check_tiles(kernel, inside, *outer[depth][1:])
            except Unsupported:
                # Hints of gradients are those of what they are gradients of: one that does not fit is no mistake.
                if not all(kernel.ops[at].hints.get("backward") for at in inside):
                    raise
                for at in inside:
                    tilings[at] = ()
    for tiling, group in groupby(range(len(tilings)), key=lambda at: tilings[at]):
        if tiling:
            tile(kernel, tiling, list(group))


def _tiling(op: LoopOp) -> Tiling:
    found = tuple(
        (scope["scope"], name, count)
        for scope in op.scopes()
        for name, count in (scope.get("num_tiles_per_dim") or scope.get("tiles") or {}).items()
        if count > 1
    )
    names = [name for _, name, _ in found]
    if len(set(names)) < len(names):
        raise Unsupported(
            f"spyre_hint(num_tiles_per_dim=...): {op.name} is in tiles of {names}, one of them twice{op.where()}"
        )
    return found
