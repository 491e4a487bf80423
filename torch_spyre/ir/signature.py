"""Signatures: what a kernel is compiled for beyond its own text, the layouts and offsets of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import _C


@dataclass(frozen=True)
class Argument:
    """Layout of an argument's storage, where the tensor begins in it, and the first argument on the same memory."""

    layout: _C.SpyreTensorLayout
    offset: int
    storage: int


def signature_of(tensors: Sequence[torch.Tensor]) -> tuple[Argument, ...]:
    """The arguments that a kernel is compiled for."""
    return tuple(Argument(*place) for place in _C.argument_placements(tensors))
