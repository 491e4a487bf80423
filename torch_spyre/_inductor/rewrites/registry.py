"""Which ATen ops are written with other ATen ops: functions of the op's own arguments, on tensors.

Unlike a lowering, a rewrite is made before autograd's graph is split and rounds where its parts round. One that gives
NotImplemented leaves the op as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Rewrite = TypeVar("Rewrite", bound=Callable[..., Any])
REWRITES: dict[torch._ops.OpOverload, Callable[..., Any]] = {}


def rewrites(*ops: torch._ops.OpOverload) -> Callable[[Rewrite], Rewrite]:
    def register(rewrite: Rewrite) -> Rewrite:
        for op in ops:
            REWRITES[op] = rewrite
        return rewrite

    return register
