"""Lets the card compute while collectives are under way.

Before: an ATen graph with functional collectives in the order of the program. After: the same collectives in the same
order, as all ranks have to agree on it; ops that neither a collective needs nor need it are between its start and its
``wait_tensor``. None of them passes another collective, so that no more memory is in use than between two. A sum of a
tensor that nothing else uses is made in place.
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
    """Moves what a collective does not need, back to the one before it, behind its start."""
    window = _window(start)
    needed = _needed(start, set(window))
    changed = {given for node in needed if is_mutable(node) for given in node.all_input_nodes}
    place = start
    for node in window:
        if node in needed or changed & set(node.all_input_nodes):
            needed.add(node)  # and whoever uses it may stay or go
            continue
        place.append(node)
        place = node


def _window(start: fx.Node) -> list[fx.Node]:
    """The nodes from the collective before up to this one, in order."""
    window: list[fx.Node] = []
    node = start.prev
    while node.op not in ("root", "placeholder", "get_attr") and not is_start(node):
        window.append(node)
        node = node.prev
    return window[::-1]


def _needed(start: fx.Node, window: set[fx.Node]) -> set[fx.Node]:
    """The nodes of the window that have to come before its start."""
    fixed = [node for node in window if is_mutable(node) or _draws(node)]
    found: set[fx.Node] = set()
    left = [*start.all_input_nodes, *fixed]
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
    """Moves what does not need a collective, up to the next one, in front of its wait."""
    behind = {wait}
    kept: list[fx.Node] = []
    node = wait.next
    while node.op != "output" and not is_collective(node):
        following = node.next
        stays = is_mutable(node) or _draws(node) or bool(behind & set(node.all_input_nodes))
        changed = {given for other in kept if is_mutable(other) for given in other.all_input_nodes}
        if stays or changed & set(node.all_input_nodes):
            behind.add(node)
            kept.append(node)
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
