"""The registry of lowerings: functions of the builder and an op's own arguments, with tensors as Values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Lowering = Callable[..., Any]
LOWERINGS: dict[torch._ops.OpOverload, Lowering] = {}


def lowers(*ops: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> Callable[[Lowering], Lowering]:
    """Registers a lowering of these ops; of a packet, for all overloads that return new tensors."""

    def register(lowering: Lowering) -> Lowering:
        for op in ops:
            for overload in overloads(op):
                LOWERINGS[overload] = lowering
        return lowering

    return register


def overloads(op: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> list[torch._ops.OpOverload]:
    if isinstance(op, torch._ops.OpOverload):
        return [op]
    found = [getattr(op, name) for name in op.overloads()]
    return [o for o in found if not o._schema.is_mutable and "dimname" not in o._overloadname.lower()]
