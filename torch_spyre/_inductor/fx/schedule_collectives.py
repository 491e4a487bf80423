"""Lets the card compute while collectives are under way.

Before: an ATen graph with functional collectives in the order of the program. After: the same collectives in the same
order, as all ranks have to agree on it; ops that neither a collective needs nor need it are between its start and its
``wait_tensor``. None of them passes another collective, so that no more memory is in use than between two, or an op
that changes memory. A sum of a tensor that nothing else uses is made in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor

from ...constants import DEVICE_NAME
from .nodes import is_mutable, is_view

_c10d = torch.ops._c10d_functional
IN_PLACE: dict[Any, Any] = {
    _c10d.all_reduce.default: _c10d.all_reduce_.default,
    _c10d.broadcast.default: _c10d.broadcast_.default,
}


def schedule_collectives(graph: fx.Graph) -> None:
    """Reorders ``graph`` in place."""
    starts = [node for node in graph.nodes if is_start(node)]
    if not starts:
        return
    for start in starts:
        _postpone_others(start)
    for wait in [node for node in graph.nodes if is_wait(node)]:
        _sink(wait)
        _bring_others_forward(wait)
    for start in starts:
        _work_in_place(start)
    graph.lint()


def is_collective(node: fx.Node) -> bool:
    """Whether a node starts a collective or waits for one."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "_c10d_functional"


def is_wait(node: fx.Node) -> bool:
    return node.target is _c10d.wait_tensor.default


def is_start(node: fx.Node) -> bool:
    return is_collective(node) and not is_wait(node)


def _postpone_others(start: fx.Node) -> None:
    """Moves what a collective does not need behind its start, back to the collective or change of memory before it."""
    window: list[fx.Node] = []
    node = start.prev
    while node.op not in ("root", "placeholder", "get_attr") and not is_start(node) and not is_mutable(node):
        window.append(node)
        node = node.prev
    needed = _needed(start, set(window))
    for node in window:  # from the last to the first: each comes right behind the start
        if node not in needed:
            start.append(node)


def _needed(start: fx.Node, window: set[fx.Node]) -> set[fx.Node]:
    """The nodes of the window that have to come before its start."""
    found: set[fx.Node] = set()
    left = [*start.all_input_nodes, *(node for node in window if _draws(node))]
    while left:
        node = left.pop()
        if node in window and node not in found:
            found.add(node)
            left.extend(node.all_input_nodes)
    return found


def _draws(node: fx.Node) -> bool:
    """Whether a node takes random numbers, whose order is part of the program, or has other effects."""
    target = node.target
    random = isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
    return random or node.is_impure()


def _sink(wait: fx.Node) -> None:
    """Moves a wait in front of the first node that uses it."""
    node = wait.next
    while node.op != "output" and node not in wait.users and not is_mutable(node):
        node = node.next
    node.prepend(wait)


def _bring_others_forward(wait: fx.Node) -> None:
    """Moves what does not need a collective, up to the next one or a change of memory, in front of its wait."""
    behind = {wait}
    node = wait.next
    while node.op != "output" and not is_collective(node) and not is_mutable(node):
        following = node.next
        if _draws(node) or behind & set(node.all_input_nodes):
            behind.add(node)
        else:
            wait.prepend(node)
        node = following


def _work_in_place(start: fx.Node) -> None:
    """A collective whose input is computed by a kernel, and not used by anyone else, needs no copy of it."""
    given = start.args[0]
    if start.target not in IN_PLACE or not isinstance(given, fx.Node) or len(given.users) != 1:
        return
    fake, target = given.meta.get("val"), given.target
    if not isinstance(fake, FakeTensor) or not isinstance(target, torch._ops.OpOverload) or is_collective(given):
        return
    if not is_view(given) and fake.device.type == DEVICE_NAME:
        start.target = IN_PLACE[start.target]
