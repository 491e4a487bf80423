"""How to extend the compiler from outside: lowerings, decompositions and passes of your own.

A *lowering* says what an op is on the card, in loop ops. A *decomposition* writes an op with other ops. A *pass*
changes kernels on their way to the card. What is registered counts for eager ops and for ``torch.compile`` from then
on, and is part of the keys of all caches: the source file of a function stands for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from . import _C
from ._inductor import pipeline
from ._inductor.errors import Unsupported
from ._inductor.fx.decompositions import DECOMPOSITIONS, table
from ._inductor.layout.device_ir import Plan
from ._inductor.loop_ir.builder import Builder, Value
from ._inductor.lowerings import LOWERINGS
from ._inductor.lowerings.registry import overloads
from .caching import version

__all__ = [
    "Builder",
    "Plan",
    "Unsupported",
    "Value",
    "register_decomposition",
    "register_lowering",
    "register_pass",
    "unregister",
]

Op = torch._ops.OpOverload | torch._ops.OpOverloadPacket
Function = TypeVar("Function", bound=Callable[..., Any])


def register_lowering(*ops: Op) -> Callable[[Function], Function]:
    """Decorates a function ``(builder, *arguments) -> value`` that builds the op out of loop ops.

    Arguments are those of the op, tensors among them as :class:`Value`; results are values, a tuple of them where the
    op has several. ``builder.meta`` has their sizes and dtypes. Each call of the builder rounds once, into the dtype
    that it is given. Raising :class:`Unsupported` leaves the call to the CPU, with a warning. Of a packet, every
    overload that makes new tensors is registered. A lowering that is there already is replaced.
    """
    return _into(LOWERINGS, [overload for op in ops for overload in overloads(op)])


def register_decomposition(*ops: Op) -> Callable[[Function], Function]:
    """Decorates a function of the op's own arguments that computes the same with other ops.

    It is traced before autograd's graph is split, and rounds where its parts round. Returning ``NotImplemented`` leaves
    the op as it is.
    """
    return _into(DECOMPOSITIONS, [overload for op in ops for overload in overloads(op)])


def register_pass(*, before: str = "", after: str = "") -> Callable[[Function], Function]:
    """Decorates a function of a :class:`Plan` that changes it in place, before or after the stage of this name.

    ``torch_spyre._inductor.pipeline`` lists the stages, and which conditions hold at each.
    """
    if bool(before) == bool(after):
        raise ValueError("register_pass takes one of before= and after=, the name of a stage")

    def register(function: Function) -> Function:
        pipeline.insert(pipeline.PlanPass(function, name=function.__name__), before, after)
        _changed(function, True)
        return function

    return register


def unregister(function: Callable[..., Any]) -> None:
    """Takes back all that was registered with a function. What it had replaced does not return."""
    for registry in (LOWERINGS, DECOMPOSITIONS):
        for op in [op for op, registered in registry.items() if registered is function]:
            del registry[op]
    pipeline.remove(function)
    _changed(function, False)


def _into(
    registry: dict[torch._ops.OpOverload, Any], ops: list[torch._ops.OpOverload]
) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        for op in ops:
            registry[op] = function
        _changed(function, True)
        return function

    return register


def _changed(function: Callable[..., Any], registered: bool) -> None:
    """What was decided with other registrations is decided again."""
    version.extend(function) if registered else version.restrict(function)
    for tables in (table.decompositions, table.core_decompositions, table.withheld_decompositions):
        tables.cache_clear()
    if (calls := sys.modules.get("torch_spyre.eager.lowered")) is not None:
        calls.forget()
    _C.forget_kernels()
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()
