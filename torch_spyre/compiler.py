"""How other packages extend the compiler: lowerings, decompositions and passes of their own.

A *lowering* builds an op out of loop ops. A *decomposition* writes an op with other ops. A *pass* changes the plan of a
kernel. Registrations hold for eager ops and for ``torch.compile`` from then on, and are part of the keys of all caches:
the source file of a function stands for it.
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
Registry = dict[torch._ops.OpOverload, Any]

# For each registry, the functions of each op that was registered here, in order: the last one counts. The first is the
# compiler's own; None: it has none.
_registered: list[tuple[Registry, dict[torch._ops.OpOverload, list[Any]]]] = [(LOWERINGS, {}), (DECOMPOSITIONS, {})]


def register_lowering(*ops: Op) -> Callable[[Function], Function]:
    """Decorates a function ``(builder, *arguments) -> value`` that builds the op out of loop ops.

    Arguments are those of the op, tensors among them as :class:`Value`; results are values, a tuple of them where the
    op has several. ``builder.meta`` has their sizes and dtypes. Each call of the builder rounds once, into the dtype
    that it is given. Raising :class:`Unsupported` leaves the call to the CPU, with a warning. Of a packet, every
    overload that makes new tensors is registered. The last registration of an op counts; :func:`unregister` brings the
    one before it back. An op that has a decomposition is decomposed and needs no lowering.
    """
    return _into(LOWERINGS, [overload for op in ops for overload in overloads(op)])


def register_decomposition(*ops: Op) -> Callable[[Function], Function]:
    """Decorates a function of the op's own arguments that computes the same with other ops.

    It is traced before autograd's graph is split, and each op in it rounds. Returning ``NotImplemented`` leaves the op
    as it is. The last registration of an op counts; :func:`unregister` brings the one before it back.
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
    """Takes back everything that was registered with a function; what it had replaced counts again."""
    for registry, registered in _registered:
        for op in [op for op, functions in registered.items() if function in functions]:
            registered[op] = [each for each in registered[op] if each is not function]
            _set(registry, op, registered[op][-1])
    pipeline.remove(function)
    _changed(function, False)


def _into(registry: Registry, ops: list[torch._ops.OpOverload]) -> Callable[[Function], Function]:
    registered = next(functions for known, functions in _registered if known is registry)

    def register(function: Function) -> Function:
        for op in ops:
            registered.setdefault(op, [registry.get(op)]).append(function)
            _set(registry, op, function)
        _changed(function, True)
        return function

    return register


def _set(registry: Registry, op: torch._ops.OpOverload, function: Callable[..., Any] | None) -> None:
    if function is None:
        registry.pop(op, None)
    else:
        registry[op] = function


def _changed(function: Callable[..., Any], registered: bool) -> None:
    """Forgets everything that was derived from the registrations before."""
    version.extend(function) if registered else version.restrict(function)
    for tables in (table.decompositions, table.core_decompositions, table.withheld_decompositions):
        tables.cache_clear()
    if (lowered := sys.modules.get("torch_spyre.eager.lowered")) is not None:
        lowered.forget()
    _C.forget_kernels()
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()
