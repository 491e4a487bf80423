"""What partitioning asks of single nodes of an FX graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...constants import DEVICE_NAME
from .kernel_call import fall_back
from .lower import tensors_of

aten = torch.ops.aten


def on_card(node: fx.Node) -> bool:
    return any(t.device.type == DEVICE_NAME for t in tensors_of(node.meta.get("val")))


def is_view(node: fx.Node) -> bool:
    """Whether an op returns memory of its first argument: a view, or the argument itself after a change in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return node.target is aten._unsafe_view.default or any(r.alias_info for r in node.target._schema.returns)


def is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def is_number(value: Any) -> bool:
    """Whether a value is a 0-dim CPU tensor."""
    return (
        isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0 and not value.is_complex()
    )


def computes_number(node: fx.Node) -> bool:
    """Whether an op computes a 0-dim CPU tensor from others: generated C++ for it would save nothing."""
    values = [given.meta.get("val") for given in (node, *node.all_input_nodes)]
    return not is_mutable(node) and not is_view(node) and all(map(is_number, values))


def moves_devices(node: fx.Node) -> bool:
    """Whether an op copies tensors between devices: Inductor generates these copies itself."""
    devices = {t.device for n in node.all_input_nodes for t in tensors_of(n.meta.get("val"))}
    devices |= {t.device for t in tensors_of(node.meta.get("val"))}
    return len(devices) > 1 and node.target in (aten._to_copy.default, torch.ops.prims.device_put.default)


def copy_to_card(graph: fx.Graph, number: fx.Node, device: torch.device) -> fx.Node:
    """A copy of a 0-dim CPU tensor on the card; float64 becomes float32, the widest format of the card."""
    fake = number.meta["val"]
    dtype = torch.float32 if fake.dtype == torch.float64 else fake.dtype
    copy = graph.call_function(aten._to_copy.default, (number,), {"dtype": dtype, "device": device})
    with fake.fake_mode:
        copy.meta["val"] = torch.empty((), dtype=dtype, device=device)
    fall_back(copy)
    return copy
