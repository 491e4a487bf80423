"""Names for the dimensions of tensors that enter a program, for its hints::

    declare_tensor_dim("M", 512)
    declare_tensor_dim("K", 4096)
    name_tensor_dims(x, ["M", "K"])

Names belong to memory: a view of ``x`` has them too, each where it moves as the named dimension does. Inside a program
they go on through views and ops (:mod:`passes.name_dims`), and ``spyre_hint(named_dims=[...])`` names what it makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_sizes: dict[str, int] = {}  # of declared dimensions
_ATTRIBUTE = "_spyre_named_strides"  # of a storage: by stride, the name of the dimension


def declare_tensor_dim(name: str, size: int) -> None:
    """A dimension that tensors can have, and how many points it has. Declared again, it has the new size."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"declare_tensor_dim({name!r}, {size!r}): a name is a text that is not empty")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise TypeError(f"declare_tensor_dim({name!r}, {size!r}): a size is a positive number")
    _sizes[name] = size


@torch.compiler.disable
def name_tensor_dims(tensor: torch.Tensor, names: Sequence[str | None]) -> None:
    """Name the dimensions of a tensor in order; ``None`` leaves one without. Names that it had are forgotten."""
    call = f"name_tensor_dims({list(tensor.shape)}, {list(names)})"
    if len(names) != tensor.dim():
        raise ValueError(f"{call}: {len(names)} names for {tensor.dim()} dimensions")
    given = [name for name in names if name is not None]
    if len(set(given)) < len(given):
        raise ValueError(f"{call}: a name stands for one dimension")
    for name, size in zip(names, tensor.shape, strict=True):
        if name is None:
            continue
        if name not in _sizes:
            raise ValueError(
                f"{call}: there is no dimension {name!r} yet; declare_tensor_dim({name!r}, {size}) makes it"
            )
        if _sizes[name] != size:
            raise ValueError(f"{call}: {name!r} was declared with {_sizes[name]} points, the tensor has {size}")
    moving = zip(names, tensor.shape, tensor.stride(), strict=True)
    named = {stride: name for name, size, stride in moving if name is not None and size > 1 and stride}
    setattr(tensor.untyped_storage(), _ATTRIBUTE, named)


def names_of(tensor: torch.Tensor) -> tuple[str, ...]:
    """The names of a tensor's dimensions, "" for those without; nothing if none has one."""
    named: dict[int, str] = getattr(tensor.untyped_storage(), _ATTRIBUTE, {})
    if not named:
        return ()
    names = tuple(
        named.get(stride, "") if size > 1 else "" for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return names if any(names) else ()


def give_names(graph: torch.fx.Graph, names: Sequence[tuple[str, ...]]) -> None:
    """Let the placeholders of a graph know the names of what enters, given for all of them in order."""
    for node, mine in zip(graph.find_nodes(op="placeholder"), names, strict=False):
        value: Any = node.meta.get("val")
        if mine and isinstance(value, torch.Tensor) and value.dim() == len(mine):
            node.meta["spyre_names"] = mine
