"""The registry of decompositions: functions of an op's own arguments that call other ATen ops.

Unlike a lowering, a decomposition is applied before autograd's graph is split, and each op in it rounds. One that
returns NotImplemented leaves the op as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Decomposition = TypeVar("Decomposition", bound=Callable[..., Any])
DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {}


def decomposes(*ops: torch._ops.OpOverload) -> Callable[[Decomposition], Decomposition]:
    """Registers a decomposition of these ops."""

    def register(decomposition: Decomposition) -> Decomposition:
        for op in ops:
            DECOMPOSITIONS[op] = decomposition
        return decomposition

    return register
