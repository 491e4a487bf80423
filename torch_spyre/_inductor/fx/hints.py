"""Hints: instructions of the programmer to the planners, for a part of a program.

A hint is a scope around ops. It is kept on their FX nodes, forward and backward::

    with spyre_hint(num_tiles_per_dim={"M": 8}):
        with spyre_hint(work_div={"N": 4}):
            y = x @ w

Scopes nest; the outer scope is the outer loop. docs/compiler.md says what each hint does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.fx.traceback
from torch.fx import GraphModule

from .. import config

_PREFIX = "spyre_hint."  # in node.meta["custom"], followed by the number of the scope
_scopes: Iterator[int] = itertools.count()


def spyre_hint(
    *,
    num_tiles_per_dim: dict[str, int] | None = None,
    tiles: dict[str, int] | None = None,
    slices: dict[str, int] | None = None,
    work_div: dict[str, int] | None = None,
    named_dims: list[str] | None = None,
) -> AbstractContextManager[None]:
    """Gives a hint to the ops inside the scope. Dimensions have the names that ``name_tensor_dims`` gave them."""
    scope = _open_scope(num_tiles_per_dim, tiles, slices, work_div, named_dims)
    return torch.fx.traceback.annotate(scope)


@torch.compiler.assume_constant_result  # Dynamo runs it while tracing, so every scope of a program gets its own number
def _open_scope(
    num_tiles_per_dim: dict[str, int] | None,
    tiles: dict[str, int] | None,
    slices: dict[str, int] | None,
    work_div: dict[str, int] | None,
    named_dims: list[str] | None,
) -> dict[str, Any]:
    counts = {"num_tiles_per_dim": num_tiles_per_dim, "tiles": tiles, "slices": slices, "work_div": work_div}
    hint: dict[str, Any] = {name: _check_counts(name, value) for name, value in counts.items() if value is not None}
    if named_dims is not None:
        hint["named_dims"] = _check_names(named_dims)
    if not hint:
        raise TypeError(f"spyre_hint() needs a hint: one of {', '.join([*counts, 'named_dims'])}")
    return {f"{_PREFIX}{next(_scopes)}": hint}


def _check_counts(name: str, value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or not value:
        raise TypeError(f"spyre_hint({name}={value!r}): expected dimensions and counts, like {{'M': 8}}")
    for dim, count in value.items():
        if not isinstance(dim, str) or isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise TypeError(f"spyre_hint({name}={value!r}): {dim!r}: {count!r} is not a name and a positive count")
    return dict(value)


def _check_names(value: Any) -> list[str]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"spyre_hint(named_dims={value!r}): expected a list of names, like ['M', 'K']")
    return list(value)


def gather_hints(graph: GraphModule) -> list[Any]:
    """Puts each node's hints into ``node.meta["custom"]["spyre_hint"]["scopes"]``. Returns all of them, for cache keys.

    The outermost scope comes first. A scope is a dictionary of its hints and of ``scope``, a number that tells scopes
    with equal hints apart. With ``config.ignore_hints`` all hints are dropped.
    """
    numbers: dict[str, int] = {}
    found = []
    for module in graph.modules():
        for position, node in enumerate(module.graph.nodes if isinstance(module, GraphModule) else ()):
            custom = node.meta.get("custom", {})
            scopes = [key for key in custom if key.startswith(_PREFIX)]
            if not scopes:
                continue
            node.meta["custom"] = {key: value for key, value in custom.items() if key not in scopes}
            if not config.ignore_hints:
                hints = [{"scope": numbers.setdefault(key, len(numbers)), **custom[key]} for key in scopes]
                node.meta["custom"]["spyre_hint"] = {"scopes": hints}
                found.append((position, hints))
    return found


def mark_backward(graph: GraphModule) -> None:
    """Marks the hints of a backward graph, which come from forward ops: one that does not fit a gradient is ignored."""
    for node in graph.graph.nodes:
        if hints := node.meta.get("custom", {}).get("spyre_hint"):
            node.meta["custom"] = {**node.meta["custom"], "spyre_hint": {**hints, "backward": True}}
