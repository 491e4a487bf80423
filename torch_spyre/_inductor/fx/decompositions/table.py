"""The tables of decompositions that graphs and eager ops are traced with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from . import DECOMPOSITIONS

aten = torch.ops.aten


class Decompositions(dict[torch._ops.OpOverload, Callable[..., Any]]):
    """A table that is pickled as a reference: the compiler's version stands for its content in the keys of caches."""

    def __reduce__(self) -> tuple[Callable[[], Decompositions], tuple[()]]:
        return decompositions, ()


@cache
def decompositions() -> Decompositions:
    """The table for ``torch.compile``: Inductor's, without ops that have a lowering, with the card's decompositions."""
    from torch._inductor import decomposition

    return Decompositions({**_not_lowered(decomposition.decompositions), **DECOMPOSITIONS})


@cache
def core_decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """The table for eager ops, from PyTorch's own tables: these need no import of Inductor."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    return {**_not_lowered({**core_aten_decompositions(), **get_decompositions(_MORE)}), **DECOMPOSITIONS}


@cache
def withheld_decompositions() -> frozenset[Any]:
    """Ops that the card lowers and that Inductor can only decompose: on tensors of other devices they run eagerly."""
    from torch._inductor import decomposition

    from ...lowerings import LOWERINGS

    return frozenset(decomposition.decompositions).intersection(LOWERINGS)


def _not_lowered(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    from ...lowerings import LOWERINGS

    return {op: how for op, how in table.items() if op not in LOWERINGS}


# PyTorch's core table lacks these, since other devices have kernels for them.
_MORE: list[Any] = [
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit_no_training,
    aten.native_batch_norm,
    aten.batch_norm_backward,
    aten._softmax_backward_data,
    aten.dist,
    aten.grid_sampler_2d,
    aten.lcm,
    aten.linalg_vector_norm,
    aten.logit,
    aten.narrow_copy,
    aten.nll_loss2d_backward,
]
