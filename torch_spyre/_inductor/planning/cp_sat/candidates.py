"""The divisions of each op that could be in a better plan than the one that is given."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ..core_tiles import CoreTile
from ..divisions import Slices, divisions
from ..search_space import Stay
from .equal_layers import EqualLayers, OpKey

PICOSECONDS = 1_000_000  # per microsecond: the solver counts in whole numbers
ALL = 8000  # divisions of all ops together up to which none is left out
ROUNDING = 1e-3  # microseconds

SharedTiles = tuple[CoreTile | None, ...]  # by shared operand: what the cores have of it; None where they share a sum


class Candidates:
    """``divisions``: by op that stands for others. A plan with any division that is missing takes longer than the given
    one, unless ``all_divisions`` is false: then there were too many to look at."""

    def __init__(self, layers: EqualLayers, slices: Sequence[Slices], stays: Mapping[str, Stay]) -> None:
        self.layers, self.space, self.given = layers, layers.space, slices
        self.all_divisions = True
        self.given_us = self._given_us(stays)
        self.counts: Counter[OpKey] = Counter(layers.key(at) for at in range(len(slices)))
        self.fewest: dict[int, int] = {}  # by op that stands for others: how many have one of its divisions at least
        for (at, _), count in self.counts.items():
            self.fewest[at] = min(count, self.fewest.get(at, count))
        self.times = self._times(self._divisions())
        self.slack = self.given_us - self._least_us() + ROUNDING  # what a better plan could gain
        self.divisions = {
            at: [each for each in mine if self.excess(at, each) <= self.slack] for at, mine in self.times.items()
        }

    def _given_us(self, stays: Mapping[str, Stay]) -> float:
        """Microseconds of the plan that is known."""
        total = sum(self.space.copying_us(name, stay, self.given.__getitem__) for name, stay in stays.items())
        for at, slices in enumerate(self.given):
            in_lx = [position for name, position in self.layers.shared[at] if name in stays]
            total += self.space.time(at, slices, marked(len(self.space.ops[at].operands), in_lx))
        return total

    def _divisions(self) -> dict[int, dict[Slices, None]]:
        """Of the ops that stand for others: all, if there are few; else the best and what follows elsewhere."""
        space, layers = self.space, self.layers
        found: dict[int, dict[Slices, None]] = defaultdict(dict)
        for at, slices in enumerate(self.given):
            found[layers.first(at)][slices] = None
        free = [at for at in found if at not in space.fixed]
        every = {at: list(divisions(space.plan, space.ops[at], any_number=True)) for at in free}
        if sum(map(len, every.values())) <= ALL:
            for at in free:
                found[at].update(dict.fromkeys(every[at]))
            return found
        self.all_divisions = False
        for at in free:
            found[at].update(dict.fromkeys(space.candidates(at)))
        queue = [(at, slices) for at, mine in found.items() for slices in mine]
        while queue:
            at, slices = queue.pop()
            for name, position in layers.shared[at] if not space.folds_together(at, slices) else ():
                tile = space.core_tile(at, position, slices)
                for use in space.uses[name]:
                    theirs = None if use.at in space.fixed else space.aligned(use.at, use.position, tile)
                    other = layers.first(use.at)
                    if theirs is not None and theirs not in found[other]:
                        found[other][theirs] = None
                        queue.append((other, theirs))
        return found

    def _times(self, divided: Mapping[int, Iterable[Slices]]) -> dict[int, dict[Slices, float]]:
        """By op and division: microseconds with all operands in LX that could be."""
        space, found = self.space, {}
        for at, mine in divided.items():
            in_lx = [(slices, operands) for slices in mine for operands in space.possible_in_lx(at, slices)]
            best: dict[Slices, float] = {}
            for (slices, _), time in zip(in_lx, space.costs.times(space.ops[at], in_lx), strict=True):
                best[slices] = min(best.get(slices, time), time)
            found[at] = {slices: space.iterations[at] * time for slices, time in best.items()}
        return found

    def _least_us(self) -> float:
        """Less than any plan takes."""
        return sum(min(self.times[self.layers.first(at)].values()) for at in range(len(self.given)))

    def excess(self, at: int, slices: Slices) -> float:
        """Microseconds by which a plan with that division is longer than the least, or more."""
        times = self.times[at]
        return self.fewest[at] * (times[slices] - min(times.values()))

    def shared_tiles(self, at: int, slices: Slices) -> SharedTiles:
        """What the cores have of the shared operands of an op that is divided so."""
        shared = self.layers.shared[at]
        if self.space.folds_together(at, slices):
            return (None,) * len(shared)
        return tuple(self.space.core_tile(at, position, slices) for _, position in shared)


def marked(count: int, positions: Iterable[int]) -> tuple[bool, ...]:
    """By operand of ``count``: whether it is among these."""
    among = set(positions)
    return tuple(position in among for position in range(count))
