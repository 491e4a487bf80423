"""Results that are views of an input which the program changed in place become views of that input.

In a functional graph such a result is a view of the input's new value, which is then copied into the input. If nothing
else uses the new value, the change is done in place instead: assigning to a part of a cache does not copy the cache.
AOTAutograd creates such results again from the input, with the size, strides and offset of the graph's result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext

_ALIASED = "spyre_aliased"  # in the meta of the output node
_copy = torch.ops.aten.copy_.default
_kept = torch.ops.prims.clone.default  # inserted by keep_storages; a view needs no copy of its base


def note_aliased(graph: fx.Graph) -> tuple[int, ...]:
    """Notes on a forward graph which of its results are views of inputs to AOTAutograd. Returns their positions."""
    context = TracingContext.try_get()
    facts = context.fw_metadata if context is not None else None
    if facts is None:
        return ()
    first = facts.num_mutated_inp_runtime_indices
    aliased = tuple(
        first + i for i, info in enumerate(facts.output_info) if info.output_type == OutputType.alias_of_input
    )
    graph.output_node().meta[_ALIASED] = aliased
    return aliased


def views_of_inputs(graph: fx.Graph) -> None:
    """After: a result that is a view of an input to AOTAutograd is a view of the placeholder, not of its new value."""
    output = graph.output_node()
    if _ALIASED not in output.meta:  # the body of a loop, whose result may be a single node
        return
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    for position in output.meta[_ALIASED]:
        if isinstance(results[position], fx.Node):
            results[position] = _view_of_input(graph, results[position])
    output.args = (tuple(results),)


def _view_of_input(graph: fx.Graph, result: fx.Node) -> fx.Node:
    views: list[fx.Node] = []
    root = result
    while (target := _copied_into(root)) is None or not views:
        if root.op != "call_function" or not (root.target is _kept or getattr(root.target, "is_view", False)):
            return result
        if root.target is not _kept:
            views.append(root)
        root = root.args[0]  # type: ignore[assignment]
    for view in reversed(views):
        with graph.inserting_before(graph.output_node()):
            view = graph.node_copy(view)
        view.args = (target, *view.args[1:])
        target = view
    return target


def _copied_into(node: fx.Node) -> fx.Node | None:
    """The input that a node's value is copied into; None if there is none."""
    targets = (user.args[0] for user in node.users if user.target is _copy and user.args[1] is node)
    return next((t for t in targets if isinstance(t, fx.Node) and t.op == "placeholder" and _alike(t, node)), None)


def _alike(one: fx.Node, other: fx.Node) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    return (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
