"""How ops that the card lacks are written with ops that it has, before autograd's graph is split."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


class Decompositions(dict[torch._ops.OpOverload, Callable[..., Any]]):
    """A table that pickles by name: caches key on it, and what it holds is covered by the compiler's version."""

    def __reduce__(self) -> tuple[Callable[[], Decompositions], tuple[()]]:
        return decompositions, ()


@cache
def decompositions() -> Decompositions:
    """Inductor's table with the card's changes."""
    from torch._inductor import decomposition

    from .lowerings import LOWERINGS

    return Decompositions({op: how for op, how in decomposition.decompositions.items() if op not in LOWERINGS})
