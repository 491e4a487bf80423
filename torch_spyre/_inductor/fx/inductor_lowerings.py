"""Lowerings that other packages register with Inductor are for its own loops, which the card does not run: says so."""

from __future__ import annotations

import warnings

import torch
from torch import fx
from torch._inductor.lowering import lowerings

from ...constants import DEVICE_NAME
from .lower import tensors_of

_named: set[torch._ops.OpOverload] = set()


def warn_of_unused_lowerings(graph: fx.Graph) -> None:
    """Warns of each op on card tensors, once, for which a package outside of PyTorch has registered a lowering."""
    for node in graph.nodes:
        op = node.target
        if not isinstance(op, torch._ops.OpOverload) or op in _named or op not in lowerings:
            continue
        package = lowerings[op].__module__
        on_card = any(tensor.device.type == DEVICE_NAME for tensor in tensors_of(node.meta.get("val")))
        if on_card and package.split(".")[0] != "torch":
            _named.add(op)
            warnings.warn(
                f"the lowering of {op} that {package} registered with torch._inductor.lowering is for Inductor's own "
                "loops and is not used on the card: torch_spyre.compiler.register_lowering registers one for the card",
                stacklevel=2,
            )
