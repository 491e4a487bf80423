"""A device coordinate as digits: mixed-radix numbers of which some choose a core and the others a place in its box.

Two divisions write the same coordinate in two ways. Where their digits begin at units that divide one another, the
coordinate is also a number of the finer digits, in which both the core that has it and the core that wants it are
affine. Nothing here knows of ops: :mod:`relayout` makes a copy of such a number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True)
class Digit:
    """``size`` values of a coordinate's digit, from one to the next ``unit`` of its dimension."""

    size: int
    unit: int
    loop: int = -1  # of the op, where the digit says which slice of it; -1: inside every slice
    slices: int = 1  # as many as values, or fewer where the last slice is smaller: such a digit stays whole
    cores: int = 0  # from one value to the next

    @property
    def end(self) -> int:
        return self.unit * self.size

    @property
    def is_uneven(self) -> bool:
        """Whether the last slice is smaller than the others."""
        return self.loop >= 0 and self.slices < self.size


# Digits by device dimension, by growing unit; that of the lanes stands for tile and lane, in elements.
Number = dict[int, list[Digit]]


def digits_of_loop(loop: int, count: int, slices: int, points: int, step: int, cores: int) -> list[Digit]:
    """The digits of a loop over ``count`` points that moves a coordinate by ``step``: its slices of ``points`` each,
    whose cores are ``cores`` apart, and the points of a slice."""
    if slices == 1:
        return [Digit(count, step)]
    if points * slices != count:
        return [Digit(count, step, loop, slices)]
    return [Digit(slices, step * points, loop, slices, cores), Digit(points, step)]


def refined(has: list[Digit], wants: list[Digit], begin: int) -> list[Digit] | None:
    """The finer digits of both: slices as they are wanted, cores as they have it. It is wanted from ``begin`` on. None
    where the units do not divide one another, or a slice would be cut."""
    end = has[-1].end if has else 1
    gaps = _gaps(wants, end)
    if _gaps(has, end) != [] or gaps is None or sum(begin // gap.unit % gap.size * gap.unit for gap in gaps) != begin:
        return None
    wants = sorted((*wants, *gaps), key=lambda digit: digit.unit)
    places = sorted({digit.unit for digit in (*has, *wants)} | {end})
    if any(above % below for below, above in pairwise(places)):
        return None
    found: list[Digit] = []
    for below, above in pairwise(places):
        old = next(digit for digit in has if digit.unit <= below < digit.end)
        new = next(digit for digit in wants if digit.unit <= below < digit.end)
        if old.is_uneven or (new.is_uneven and (new.unit, new.end) != (below, above)):
            return None
        size = above // below
        slices = new.slices if new.is_uneven else size
        digit = Digit(size, below, new.loop, slices, old.cores * (below // old.unit))
        if found and max(found[-1].loop, digit.loop) < 0 and not (found[-1].cores or digit.cores):
            found[-1] = replace(found[-1], size=found[-1].size * digit.size)
        else:
            found.append(digit)
    return found


def _gaps(digits: list[Digit], end: int) -> list[Digit] | None:
    """The digits that are missing between these, up to ``end``. None where digits overlap, or where what is missing is
    that of other cores: boxes would reach over theirs."""
    found: list[Digit] = []
    for at, (below, above) in enumerate(pairwise([1, *(n for digit in digits for n in (digit.unit, digit.end)), end])):
        if at % 2 or below == above:  # a digit, or none missing
            continue
        if above % below or any(digit.loop >= 0 for digit in digits if digit.unit < below):
            return None
        found.append(Digit(above // below, below))
    return found


def in_whole_sticks(digits: list[Digit], elements: int) -> bool:
    """Along sticks one digit walks over elements, in one core, and all others over sticks."""
    if not digits:
        return True
    lanes, *others = digits
    if any(digit.unit % elements for digit in others) or lanes.cores:
        return False
    return lanes.loop < 0 or lanes.is_uneven
