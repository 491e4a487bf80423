"""What a kernel is compiled for, beyond its own text: how its arguments lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from .. import _C


@dataclass(frozen=True)
class Argument:
    """Layout of the argument's storage, where in it the tensor begins, and the first argument that shares its memory."""

    layout: _C.SpyreTensorLayout
    offset: int
    storage: int


def signature_of(tensors: Sequence[torch.Tensor]) -> tuple[Argument, ...]:
    """The arguments that a kernel is compiled for."""
    first: dict[int, int] = {}
    return tuple(
        Argument(
            _C.get_spyre_tensor_layout(tensor),
            tensor.storage_offset(),
            first.setdefault(tensor.untyped_storage().data_ptr(), position),
        )
        for position, tensor in enumerate(tensors)
    )


# The same as something to look up by, made on every call of a kernel.
key_of: Callable[[Sequence[torch.Tensor]], Hashable] = getattr(_C, "argument_signature", signature_of)
