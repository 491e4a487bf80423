"""Questions about the lowerings of an op; the answers are kept until something is registered."""

from __future__ import annotations

from functools import cache

from torch._ops import OpOverload


@cache
def whole(op: OpOverload) -> bool:
    """Whether the op has a lowering and no decomposition: a graph of it needs no tracing."""
    from .._inductor.fx.decompositions.table import core_decompositions
    from .._inductor.lowerings import LOWERINGS

    return op in LOWERINGS and op not in core_decompositions() and not op._can_decompose()


@cache
def with_numbers(op: OpOverload) -> bool:
    """Whether the op's lowering is also that of an overload which takes a number in place of a tensor."""
    from .._inductor.lowerings import LOWERINGS

    packet = op.overloadpacket
    numeric = [getattr(packet, name) for name in packet.overloads() if "Scalar" in name]
    return any(LOWERINGS.get(other) is LOWERINGS[op] for other in numeric)


def forget() -> None:
    """Lowerings or decompositions have changed."""
    whole.cache_clear()
    with_numbers.cache_clear()
