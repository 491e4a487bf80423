"""What the solver chooses for an op: a division, and which of its buffers are in LX."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Any

from ..divisions import Slices
from .candidates import PICOSECONDS, Candidates, SharedTiles, marked
from .equal_layers import OpKey
from .places import Places


@dataclass
class Choice:
    """A division of an op together with which of its buffers are in LX."""

    tiles: SharedTiles
    in_lx: frozenset[str]
    slices: Slices
    picoseconds: int
    chosen: Any = None  # the solver's Boolean


@dataclass
class OpChoices:
    """The choices of ops of equal layers that share equal buffers."""

    at: int  # the first of them
    names: tuple[str, ...]  # by shared operand: the buffer
    count: int
    choices: list[Choice] = field(default_factory=list)

    def holding(self, name: str) -> Iterator[Choice]:
        """The choices with this buffer in LX."""
        return (choice for choice in self.choices if name in choice.in_lx)


def choices_of_ops(candidates: Candidates, places: Places) -> dict[OpKey, OpChoices]:
    layers = candidates.layers
    found: dict[OpKey, OpChoices] = {}
    for at in range(len(candidates.given)):
        key = layers.key(at)
        if key not in found:
            found[key] = OpChoices(at, key[1], candidates.counts[key])
    for op in found.values():
        op.choices = list(_choices(op, candidates, places))
    return found


def _choices(op: OpChoices, candidates: Candidates, places: Places) -> Iterator[Choice]:
    """Divisions with the same tiles are one choice for each set of buffers that may be in LX: the fastest."""
    space, at = candidates.space, candidates.layers.first(op.at)
    positions = [position for _, position in candidates.layers.shared[op.at]]
    placed = [
        set(chain.from_iterable(place.in_lx((at, position)) for place in places.by_buffer[name]))
        for name, position in zip(op.names, positions, strict=True)
    ]
    alike: dict[SharedTiles, list[Slices]] = defaultdict(list)
    for slices in candidates.divisions[at]:
        alike[candidates.shared_tiles(at, slices)].append(slices)
    options: list[tuple[SharedTiles, frozenset[str], list[tuple[Slices, tuple[bool, ...]]]]] = []
    for tiles, same in alike.items():
        fits = [tile in there for tile, there in zip(tiles, placed, strict=True)]
        names = {name for name, ok in zip(op.names, fits, strict=True) if ok}
        names -= {name for name, ok in zip(op.names, fits, strict=True) if not ok}
        for in_lx in chain.from_iterable(combinations(sorted(names), n) for n in range(len(names) + 1)):
            inside = [p for p, name in zip(positions, op.names, strict=True) if name in in_lx]
            operands = marked(len(space.ops[at].operands), inside)
            options.append((tiles, frozenset(in_lx), [(slices, operands) for slices in same]))
    costs, mine, iterations = space.costs, space.ops[at], space.iterations[at]
    most = min(candidates.times[at].values()) + candidates.slack / op.count
    costs.times(mine, [each for _, _, divided in options for each in divided])  # all at once
    for tiles, names_in_lx, divided in options:
        ranked = zip(costs.times(mine, divided), divided, strict=True)
        time, (slices, _) = min(ranked, key=lambda each: (each[0], each[1][0] != candidates.given[op.at]))
        if iterations * time <= most:
            yield Choice(tiles, names_in_lx, slices, int(iterations * time * PICOSECONDS))
