"""How a core's LX is shared: buffers that stay there for several steps, and tiles on their way through."""

from __future__ import annotations

import os
from functools import cache

from . import description
from .description import STICK_BYTES

TILE_BYTES = 64 * 1024  # always left to tiles: two of the smallest tiles of any op


def resident_budget() -> int:
    """Bytes of a core's LX for resident buffers; ``DXP_LX_FRAC_AVAIL`` is the share that is left to tiles."""
    share = _share(os.environ.get("DXP_LX_FRAC_AVAIL") or "0.2")
    return max(min(_budget(share), _budget(0) - TILE_BYTES), 0)


def tile_budget(resident: int) -> int:
    """Bytes of a core's LX for tiles, above the ``resident`` bytes that a program keeps there."""
    return _budget(0) - resident


@cache
def _share(given: str) -> float:
    try:
        share = float(given)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise ValueError(f"DXP_LX_FRAC_AVAIL={given!r}: expected a share of LX, from 0 to 1")
    return share


@cache
def _budget(left: float) -> int:
    card = description.constants()
    return round((card["lx_bytes"] - card["lx_reserved_bytes"]) * (1 - left) / STICK_BYTES) * STICK_BYTES
