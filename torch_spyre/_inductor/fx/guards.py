"""Guards on device layouts: compiled code holds for the layouts of its inputs, and another layout is another compile.

Dynamo guards on sizes, strides and dtypes but knows no device layouts. So every card tensor that enters a graph gets a
layout guard, and its layout is part of the keys of Inductor's caches. The default layout depends on the size: where
sizes may change, a tensor that has the default layout is guarded to have the default layout of any size.
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
    """Guard the layout of every card tensor that enters the graph. Returns what the key of AOTAutograd's cache lacks.

    That is the layout of each tensor, in order, and the distance of tensors that share a storage. (Dynamo guards on
    these distances itself.)
    """
    context = TracingContext.try_get()
    layouts = []
    storages: dict[int, tuple[int, int]] = {}  # storage -> the first tensor on it, and its offset
    for node in graph.graph.find_nodes(op="placeholder"):
        argument = node.meta.get("grapharg")
        if argument is not None and getattr(argument, "pass_arg_as_tensor", False):
            layouts.append(str(argument.example))  # a float of the program, which may be a constant of the graph
        tensor = _entering(node)
        if tensor is None:
            continue
        follows_size = is_symbolic(node.meta.get("example_value")) and _C.has_default_layout(tensor)
        layouts.append("default" if follows_size else str(_C.get_spyre_tensor_layout(tensor)))
        here = (len(layouts), int(tensor.storage_offset()))
        first = storages.setdefault(tensor.untyped_storage()._cdata, here)
        if first is not here:
            layouts.append(f"on the storage of {first[0]}, {here[1] - first[1]} elements after it")
        if context is not None:
            guard = LAYOUT_DEFAULT if follows_size else LAYOUT_MATCH
            context.guards_context.dynamo_guards.add(node.meta["grapharg"].source.make_guard(guard))
    return tuple(layouts)


def guard_names(graph: GraphModule) -> list[tuple[str, ...]]:
    """Guard the dimension names of every card tensor that enters a graph with hints. Returns the names, in order."""
    context, found = TracingContext.try_get(), []
    for node in graph.graph.find_nodes(op="placeholder"):
        tensor = _entering(node)
        found.append(() if tensor is None else names_of(tensor))
        if tensor is not None and context is not None:
            context.guards_context.dynamo_guards.add(node.meta["grapharg"].source.make_guard(NAMES_MATCH))
    return found


def _entering(node: Node) -> torch.Tensor | None:
    """The card tensor that a placeholder stands for while Dynamo compiles; None if it is no such tensor."""
    argument = node.meta.get("grapharg")
    tensor = argument.example if argument is not None else None
    return tensor if isinstance(tensor, torch.Tensor) and tensor.device.type == DEVICE_NAME else None


def LAYOUT_MATCH(builder: Any, guard: Guard) -> None:  # noqa: N802 - Dynamo names guards like this
    """The tensor has the layout that it had when the code was compiled."""
    tensor = builder.get(guard)
    part = f"{builder.arg_ref(guard)}.device_tensor_layout() == {_C.get_spyre_tensor_layout(tensor)}"
    builder.get_guard_manager(guard).add_lambda_guard(_C.layout_guard(tensor), [part], guard.user_stack)


def LAYOUT_DEFAULT(builder: Any, guard: Guard) -> None:  # noqa: N802
    """The tensor has the default layout of its size."""
    part = f"{builder.arg_ref(guard)}.device_tensor_layout() is the default one"
    builder.get_guard_manager(guard).add_lambda_guard(_C.has_default_layout, [part], guard.user_stack)


def NAMES_MATCH(builder: Any, guard: Guard) -> None:  # noqa: N802
    """The tensor's dimensions have the names that they had when the code was compiled."""
    names = names_of(builder.get(guard))
    part = f"names of the dimensions of {builder.arg_ref(guard)} == {names}"
    manager = builder.get_guard_manager(guard)
    manager.add_lambda_guard(lambda other: names_of(other) == names, [part], guard.user_stack)
