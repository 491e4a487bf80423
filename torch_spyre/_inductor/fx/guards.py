"""Compiled code is made for the layouts of its inputs: another layout compiles anew.

Dynamo guards on sizes, strides and dtypes and knows no layouts, so every card tensor that enters a graph gets a guard
of its own, and the layouts take part in the keys of Inductor's caches. Where sizes may change, so do layouts that
follow from them: a tensor that lay as tensors of its size do by default is guarded to do so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import Guard, TracingContext
from torch.fx import GraphModule, Node

from ... import _C
from ...constants import DEVICE_NAME
from ..propagate_named_dims import names_of
from .specialize import is_symbolic


def guard_layouts(graph: GraphModule) -> tuple[str, ...]:
    """Guard the layout of every card tensor that enters the graph; gives what caches have to tell apart besides.

    That is the layouts, in order, and where tensors on one storage lie: Dynamo guards on those, AOTAutograd's cache
    does not look at them.
    """
    context = TracingContext.try_get()
    layouts = []
    storages: dict[int, tuple[int, int]] = {}  # storage -> the first tensor on it, and where that begins
    for node in graph.graph.find_nodes(op="placeholder"):
        argument = node.meta.get("grapharg")
        if argument is not None and getattr(argument, "pass_arg_as_tensor", False):
            layouts.append(str(argument.example))  # a float of the program, which the graph may have as a constant
        tensor = _entering(node)
        if tensor is None:
            continue
        follows_size = is_symbolic(node.meta.get("example_value")) and _C.has_default_layout(tensor)
        layouts.append("default" if follows_size else str(_C.get_spyre_tensor_layout(tensor)))
        here = (len(layouts), int(tensor.storage_offset()))
        first = storages.setdefault(tensor.untyped_storage()._cdata, here)
        if first is not here:
            layouts.append(f"on the storage of {first[0]}, {here[1] - first[1]} further")
        if context is not None:
            guard = LAYOUT_DEFAULT if follows_size else LAYOUT_MATCH
            context.guards_context.dynamo_guards.add(node.meta["grapharg"].source.make_guard(guard))
    return tuple(layouts)


def guard_names(graph: GraphModule) -> list[tuple[str, ...]]:
    """Guard the names of the dimensions of all that enters a graph with hints; gives them in order."""
    context, found = TracingContext.try_get(), []
    for node in graph.graph.find_nodes(op="placeholder"):
        tensor = _entering(node)
        found.append(() if tensor is None else names_of(tensor))
        if tensor is not None and context is not None:
            context.guards_context.dynamo_guards.add(node.meta["grapharg"].source.make_guard(NAMES_MATCH))
    return found


def _entering(node: Node) -> torch.Tensor | None:
    """The tensor that a placeholder stands for while Dynamo compiles, if it lies on the card."""
    argument = node.meta.get("grapharg")
    tensor = argument.example if argument is not None else None
    return tensor if isinstance(tensor, torch.Tensor) and tensor.device.type == DEVICE_NAME else None


def LAYOUT_MATCH(builder: Any, guard: Guard) -> None:  # noqa: N802 - Dynamo names guards like this
    """The tensor lies on the card as it did when the code was compiled."""
    tensor = builder.get(guard)
    part = f"{builder.arg_ref(guard)}.device_tensor_layout() == {_C.get_spyre_tensor_layout(tensor)}"
    builder.get_guard_manager(guard).add_lambda_guard(_C.layout_guard(tensor), [part], guard.user_stack)


def LAYOUT_DEFAULT(builder: Any, guard: Guard) -> None:  # noqa: N802
    """The tensor lies on the card as tensors of its size do by default."""
    part = f"{builder.arg_ref(guard)}.device_tensor_layout() is the default one"
    builder.get_guard_manager(guard).add_lambda_guard(_C.has_default_layout, [part], guard.user_stack)


def NAMES_MATCH(builder: Any, guard: Guard) -> None:  # noqa: N802
    """The dimensions of the tensor have the names they had when the code was compiled."""
    names = names_of(builder.get(guard))
    part = f"names of the dimensions of {builder.arg_ref(guard)} == {names}"
    manager = builder.get_guard_manager(guard)
    manager.add_lambda_guard(lambda other: names_of(other) == names, [part], guard.user_stack)
