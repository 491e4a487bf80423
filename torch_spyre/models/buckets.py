"""The few sizes that sequences are padded to, so that a handful of programs serves prompts and caches of any length.

A card program has loops of fixed length. Sequences of every length would be a program each; instead they are padded to
the next size of a short ladder, and what was padded is masked. Sizes are close together where they are small, and grow
by one ratio after that: the part of a program that works on padding is bounded alike for short and for long sequences.
Those beyond twice the number of cores are multiples of it: rows that do not divide among cores cost more than padding.
"""

from __future__ import annotations

import bisect
import dataclasses
from functools import lru_cache

from .._inductor import config
from ..card import description


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Sizes in rising order. Beyond the last one it goes on in steps of the last gap, so that no length is refused."""

    sizes: tuple[int, ...]

    def at_least(self, length: int) -> int:
        """The smallest size that holds ``length`` elements."""
        if length <= self.sizes[-1]:
            return self.sizes[bisect.bisect_left(self.sizes, length)]
        return self.sizes[-1] + _rounded_up(length - self.sizes[-1], self.last_gap)

    @property
    def last_gap(self) -> int:
        return self.sizes[-1] - (self.sizes[-2] if len(self.sizes) > 1 else 0)

    def up_to(self, length: int) -> tuple[int, ...]:
        """Every size that sequences of at most ``length`` elements are padded to."""
        found, size = [], 0
        while size < length:
            size = self.at_least(size + 1)
            found.append(size)
        return tuple(found)

    def __str__(self) -> str:
        return " ".join(map(str, self.sizes))


@lru_cache
def _ladder(longest: int, count: int, granularity: int) -> Ladder:
    low, high = 1.0, float(max(longest, 2))
    for _ in range(40):  # the smallest ratio that needs no more sizes than allowed
        middle = (low + high) / 2
        low, high = (low, middle) if len(_climb(longest, middle, granularity)) <= count else (middle, high)
    sizes = _climb(longest, high, granularity)
    return Ladder(tuple(sizes[-count:]))


def ladder(longest: int) -> Ladder:
    """At most ``MAX_BUCKETS`` sizes, multiples of ``MIN_DEFAULT_GRANULARITY``, for sequences of up to ``longest``."""
    return _ladder(longest, config.max_buckets, config.min_default_granularity)


def _climb(longest: int, ratio: float, granularity: int) -> list[int]:
    sizes, last = [granularity], _rounded_up(longest, _step_at(longest, granularity))
    while sizes[-1] < last:
        farther, nearest = int(sizes[-1] * ratio), sizes[-1] + 1
        step = _step_at(farther, granularity)
        sizes.append(min(max(farther // step * step, _rounded_up(nearest, _step_at(nearest, granularity))), last))
    return sizes


def _step_at(size: int, granularity: int) -> int:
    """What sizes about this one are multiples of."""
    cores = int(description.constants()["cores"])
    return granularity if size <= 2 * cores else _rounded_up(cores, granularity)


def _rounded_up(number: int, step: int) -> int:
    return -(-number // step) * step
