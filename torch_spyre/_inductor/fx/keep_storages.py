"""Copies that ``as_strided`` counts in stay copies.

Inductor drops a clone that looks like its source. ``x.clone().as_strided(size, stride, offset)`` then counts its offset
from the beginning of x's storage instead of the clone's, which is another place if x is a part of something larger.
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
    """Puts a copy that Inductor does not know how to drop, and that costs nothing in a kernel, in front of each."""

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
        # Inductor keeps these, and what AOT makes of them are views of an input, found again by their offsets.
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
    """A tensor that was changed in place is a new one to PyTorch's tracing, without what its storage held beside it."""
    size, stride, *offset = node.args[1:]
    start = offset[0] if offset else None
    if start is None:
        start = node.args[0].meta["val"].storage_offset()  # type: ignore[union-attr]
    last, held = (_reach(*place) for place in ((size, stride, start), (root.size(), root.stride(), 0)))
    if last is not None and held is not None and last > held:
        raise Unsupported(
            f"as_strided reaches element {last} of a tensor whose last is {held}. What lies beside a tensor that is "
            "changed in place is not seen by torch.compile; take the view before, or outside of the compiled function"
        )


def _reach(size: Any, stride: Any, start: Any) -> int | None:
    """The place of the last element; None where there is none, or sizes are not known yet."""
    if not all(isinstance(number, int) for number in (*size, *stride, start)) or 0 in size:
        return None
    return int(start + sum((n - 1) * step for n, step in zip(size, stride, strict=True)))
