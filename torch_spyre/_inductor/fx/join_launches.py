"""Joins kernels and the collectives between them into launch sequences.

Before: a partitioned graph, where calls of kernels, collectives and waits for them are nodes of their own. After: each
run of them that has a collective is one ``SequenceCall``, which the host starts at once; nothing else has changed
place. A run ends where the host has something to do: at an op that falls back, or a copy between devices. Collectives
that are in no run are ops of their own.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import fx

from ...constants import DEVICE_NAME
from .kernel_call import KernelCall, fall_back
from .lower import tensors_of
from .nodes import is_mutable, is_view, on_card
from .schedule_collectives import IN_PLACE, is_collective, is_start, is_wait
from .sequence_call import KernelStep, OpStep, SequenceCall

as_strided = torch.ops.aten.as_strided.default
OUT_OF_PLACE = {in_place: op for op, in_place in IN_PLACE.items()}


def join_launches(gm: fx.GraphModule) -> None:
    """Rewrites ``gm`` in place."""
    run = _Run()
    for node in list(gm.graph.nodes):
        if node.op not in ("placeholder", "get_attr") and not run.add(node) and not run.may_follow(node):
            run.replace(gm.graph, node)
            run = _Run()
            run.add(node)
    for node in gm.graph.nodes:
        if is_collective(node):
            fall_back(node)
    gm.graph.lint()
    gm.recompile()


@dataclass
class _Run:
    """Nodes between which the host has nothing to do.

    ``owners``: each with the node that owns the memory of its value. A wait, a view and a collective in place make no
    tensor.
    """

    owners: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def add(self, node: fx.Node) -> bool:
        """Adds a node if it can be part of the run."""
        owner = self._owner(node)
        if owner is not None:
            self.owners[node] = owner
        return owner is not None

    def _owner(self, node: fx.Node) -> fx.Node | None:
        given = node.args[0] if node.args else None
        inside = self.owners.get(given) if isinstance(given, fx.Node) else None
        if isinstance(node.target, KernelCall):
            return node
        if node.target is operator.getitem:
            return node if inside is not None else None
        if node.target is as_strided or is_wait(node):
            return inside
        if not is_start(node) or not _takes_card_tensors(node):
            return None
        op = _op_of(node)
        return inside if op in OUT_OF_PLACE else None if op._schema.is_mutable else node

    def may_follow(self, node: fx.Node) -> bool:
        """Whether the run can come behind a node that is no part of it: that reads nothing of the card's memory."""
        if node.op != "call_function" or is_mutable(node) or any(each in self.owners for each in node.all_input_nodes):
            return False
        return is_view(node) or not any(map(on_card, node.all_input_nodes))

    def replace(self, graph: fx.Graph, before: fx.Node) -> None:
        """Puts one call in the place of the nodes, in front of ``before``, if there is a collective among them."""
        used = [node for node in self.owners if any(user not in self.owners for user in node.users)]
        results = list(dict.fromkeys(self.owners[node] for node in used))
        whole = all(isinstance(node.meta["val"], torch.Tensor) for node in results)  # else a list is taken apart later
        if not any(map(is_start, self.owners)) or not whole:
            return
        with graph.inserting_before(before):
            made = self._insert_call(graph, results)
            for node in used:
                new, view = made[self.owners[node]], self._view(node)
                if view is not None:
                    new = graph.call_function(as_strided, (new, *view.args[1:]))
                    new.meta["val"] = node.meta["val"]
                node.replace_all_uses_with(new, lambda user: user not in self.owners)
        for node in reversed(self.owners):
            graph.erase_node(node)

    def _view(self, node: fx.Node) -> fx.Node | None:
        """The view of its owner that a node is; None for all of it."""
        while node is not self.owners[node]:
            if node.target is as_strided:
                return node
            node = node.args[0]  # type: ignore[assignment]
        return None

    def _insert_call(self, graph: fx.Graph, results: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
        """The new nodes of the results."""
        inputs = list(dict.fromkeys(e for node in self.owners for e in node.all_input_nodes if e not in self.owners))
        values = {node: number for number, node in enumerate(inputs)}
        count = len(inputs)
        steps: list[KernelStep | OpStep] = []
        for node, owner in self.owners.items():
            if node.target is operator.getitem:
                source, position = node.args
                values[node] = values[source] + position  # type: ignore[index, operator, assignment]
                continue
            makes = owner is node or node.target is as_strided
            made = list(range(count, count + len(tensors_of(node.meta["val"])))) if makes else []
            values[node] = count if makes else values[node.args[0]]  # type: ignore[index]
            count += len(made)
            if isinstance(node.target, KernelCall):
                steps.append(KernelStep(node.target, [values[each] for each in node.args], made))  # type: ignore[index]
            else:
                steps.append(OpStep(_op_of(node), [_argument(each, values) for each in node.args], made))
        fakes = [node.meta["val"] for node in results]
        device = next(t.device for node in self.owners for t in tensors_of(node.meta["val"]))
        call = graph.call_function(
            SequenceCall(device, steps, [values[node] for node in results], fakes), tuple(inputs)
        )
        call.meta["val"] = fakes
        items = {}
        for position, node in enumerate(results):
            items[node] = graph.call_function(operator.getitem, (call, position))
            items[node].meta["val"] = fakes[position]
        return items


def _takes_card_tensors(node: fx.Node) -> bool:
    """Whether a collective has constants and tensors of the card as arguments, and nothing else."""
    lists = (argument if isinstance(argument, list | tuple) else [argument] for argument in node.args)
    plain = all(each is None or isinstance(each, fx.Node | int | float | str) for each in chain.from_iterable(lists))
    tensors = [t for each in node.all_input_nodes for t in tensors_of(each.meta.get("val"))]
    same = len(tensors) == len(node.all_input_nodes) and all(t.device.type == DEVICE_NAME for t in tensors)
    return plain and same and not node.kwargs


def _op_of(node: fx.Node) -> torch._ops.OpOverload:
    """The op that a node stands for. Where a collective in place would give its result other strides than it was
    traced with, that is the one that makes a tensor."""
    op: Any = node.target
    if op in OUT_OF_PLACE and node.args[0].meta["val"].stride() != node.meta["val"].stride():  # type: ignore[union-attr]
        return OUT_OF_PLACE[op]
    return op


def _argument(given: Any, values: dict[fx.Node, int]) -> Any:
    if isinstance(given, fx.Node):
        return (values[given],)
    return [_argument(each, values) for each in given] if isinstance(given, list | tuple) else given
