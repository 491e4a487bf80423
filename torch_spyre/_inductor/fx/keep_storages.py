"""Keeps the copies whose storage an ``as_strided`` refers to.

Inductor removes a clone that has the size and strides of its source. ``x.clone().as_strided(size, stride, offset)``
would then count its offset from the start of x's storage instead of the clone's: a wrong element if x is a slice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from ...caching.version import compiler_version
from ...constants import DEVICE_NAME
from ..errors import Unsupported

aten, prims = torch.ops.aten, torch.ops.prims


class KeepStorages(CustomGraphPass):
    """Inserts ``prims.clone`` before ``as_strided``: Inductor does not remove it, and it costs nothing in a kernel."""

    def __call__(self, graph: fx.Graph) -> None:
        keep_storages(graph)

    def uuid(self) -> str:
        return compiler_version()


def keep_storages(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.as_strided.default):
        root = node.args[0]
        while root.op == "call_function" and getattr(root.target, "is_view", False):
            root = root.args[0]
        value = root.meta.get("val")
        # Inductor keeps these copies, and AOTAutograd recognises their views of inputs by the offset.
        if root.target is aten.as_strided_scatter.default:
            continue
        if root.op != "call_function" or not isinstance(value, torch.Tensor) or value.device.type != DEVICE_NAME:
            continue
        _check_reach(node, value)
        with graph.inserting_after(root):
            kept = graph.call_function(prims.clone.default, (root,), {"memory_format": torch.preserve_format})
        kept.meta.update(root.meta)
        node.replace_input_with(node.args[0], kept)


def _check_reach(node: fx.Node, root: torch.Tensor) -> None:
    """Refuses reads beyond a tensor that was changed in place: tracing made a new tensor of it, with a new storage."""
    size, stride, *offset = node.args[1:]
    start = offset[0] if offset else None
    if start is None:
        start = node.args[0].meta["val"].storage_offset()  # type: ignore[union-attr]
    last, end = (_last_element(*view) for view in ((size, stride, start), (root.size(), root.stride(), 0)))
    if last is not None and end is not None and last > end:
        raise Unsupported(
            f"as_strided reaches element {last} of a tensor whose last is {end}. The tensor was changed in place, and "
            "torch.compile does not see the rest of its storage; take the view before that, or outside of torch.compile"
        )


def _last_element(size: Any, stride: Any, start: Any) -> int | None:
    """The offset of the last element; None if there are no elements, or sizes are still symbols."""
    if not all(isinstance(number, int) for number in (*size, *stride, start)) or 0 in size:
        return None
    return int(start + sum((n - 1) * step for n, step in zip(size, stride, strict=True)))
