"""What collectives take by the hardware description, without carrying any out."""

from __future__ import annotations

from collections.abc import Sequence

from .. import _C


def collective_times(kind: str, bytes: int, cards: int | Sequence[int]) -> dict[str, float]:
    """Microseconds by algorithm; the first one is that which a collective uses.

    ``kind`` is ``all_reduce``, ``all_gather``, ``broadcast``, …; ``bytes`` is what one card has of it: the tensor of an
    all_reduce or broadcast, what each gives to an all_gather, what each gets of a reduce_scatter. ``cards`` is how
    many, side by side, or their places.
    """
    return dict(_C.collective_times(kind, bytes, list(range(cards)) if isinstance(cards, int) else list(cards)))
