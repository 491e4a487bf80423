"""The room in LX: at each op, what is alive there fits into the scratchpad of a core.

A buffer without copies takes room from its first use to its last. With copies over the ring, it takes room where it was
written until the last reader there has read it and the last copy is made, and each copy from its first reader to its
last; which of them there are is the solver's choice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from ..liveness import last_needed
from ..search_space import Apart
from .choices import OpChoices
from .equal_layers import EqualLayers, OpKey
from .places import Places


@dataclass(frozen=True)
class _Source:
    """A buffer at an op, where it was written; readers are counted from 1 on."""

    in_span: bool  # it takes room there, if it does not move
    to_come: tuple[int, ...] = ()  # later ops that may read it there; empty: some certainly do
    entering: tuple[int, ...] = ()  # whose copy would be made there or later


@dataclass(frozen=True)
class _Copies:
    """Its copies at an op."""

    begun: tuple[int, ...]  # readers that may have had one
    to_come: tuple[int, ...]  # readers that may need one yet


class LxRoom:
    """Adds its constraints to ``model``."""

    def __init__(self, model: Any, layers: EqualLayers, places: Places, ops: dict[OpKey, OpChoices]) -> None:
        self.model, self.layers, self.space = model, layers, layers.space
        self.places, self.ops = places, ops
        self.away: dict[tuple[str, int], dict[Apart, Any]] = {}  # by buffer and reader

    def limit(self) -> None:
        alive: list[Counter[tuple[str, _Source | _Copies]]] = [Counter() for _ in self.space.ops]
        for name in self.space.uses:
            for at, what in self._alive(name):
                alive[at][self.layers.buffers[name], what] += 1
        loads: dict[tuple[str, _Source | _Copies], list[tuple[int, Any]]] = {}
        for together in {frozenset(each.items()): each for each in alive}.values():
            if sum(count * self._largest(*key) for key, count in together.items()) <= self.space.budget:
                continue
            for name, what in together:
                if (name, what) not in loads:
                    load = self._sources(name, what) if isinstance(what, _Source) else self._copies(name, what)
                    loads[name, what] = list(load)
            taken = [count * size * chosen for key, count in together.items() for size, chosen in loads[key]]
            self.model.add(sum(taken) <= self.space.budget)

    def _alive(self, name: str) -> Iterator[tuple[int, _Source | _Copies]]:
        """When a buffer and its copies may take room."""
        span = self.space.spans[name]
        if not any(True for _ in self.places.ring_copies(self.layers.buffers[name])):
            yield from ((at, _Source(True)) for at in span)
            return
        first, *readers = self.space.uses[name]
        entry = {i: self.space.entry(first.at, use.at) for i, use in enumerate(readers, 1)}
        last = {i: last_needed(self.space.plan, first.at, use.at) for i, use in enumerate(readers, 1)}
        for at in range(first.at, max(last.values()) + 1):
            begun = tuple(i for i in entry if entry[i] <= at)
            to_come = tuple(i for i in entry if last[i] >= at)
            entering = tuple(i for i in entry if entry[i] >= at)
            all_enter = len(entering) == len(readers)
            yield at, _Source(at in span) if all_enter else _Source(at in span, to_come, entering)
            if begun:
                yield at, _Copies(begun, to_come)

    def _largest(self, name: str, what: _Source | _Copies) -> int:
        """Bytes that it takes at most."""
        if isinstance(what, _Source):
            return max((place.there.bytes for place in self.places.by_buffer[name]), default=0)
        return sum(sorted(self._copied(name).values())[-len(what.begun) :])

    def _copied(self, name: str) -> dict[Apart, int]:
        """By division that some readers want: how much of LX a copy takes at least."""
        found: dict[Apart, int] = {}
        for copy in self.places.ring_copies(name):
            found[copy.wanted.apart] = min(copy.bytes, found.get(copy.wanted.apart, copy.bytes))
        return found

    def _sources(self, name: str, what: _Source) -> Iterator[tuple[int, Any]]:
        """Bytes of a buffer where it was written, and whether they are taken: until all readers there have read it, and
        the ring has brought it to the others."""
        needed = self._needed(name, what) if what.to_come else None
        for place in self.places.by_buffer[name]:
            there = place.chosen if what.in_span else place.copied
            if needed is not None and place.copies:
                before, there = there, self.model.new_bool_var("")
                self.model.add(there >= before + needed - 1)
            yield place.there.bytes, there

    def _needed(self, name: str, what: _Source) -> Any:
        """Whether some reader to come reads it there, or is the first to want it elsewhere."""
        needed = self.model.new_bool_var("")
        stays = sum(place.chosen for place in self.places.by_buffer[name])
        for reader in what.to_come:
            self.model.add(needed >= stays - sum(self._away(name, reader).values()))
        for reader in what.entering:
            for apart, away in self._away(name, reader).items():
                before = [self._away(name, other).get(apart, 0) for other in range(1, reader)]
                self.model.add(needed >= away - sum(before))
        return needed

    def _copies(self, name: str, what: _Copies) -> Iterator[tuple[int, Any]]:
        """Bytes of its copies, and whether they are taken: from the first op that reads one to the last."""
        begun, to_come = ([self._away(name, reader) for reader in readers] for readers in (what.begun, what.to_come))
        for apart, size in self._copied(name).items():
            alive = self.model.new_bool_var("")
            for one, other in product(begun, to_come):
                if apart in one and apart in other:
                    same = one is other
                    self.model.add(alive >= (one[apart] if same else one[apart] + other[apart] - 1))
            yield size, alive

    def _away(self, name: str, reader: int) -> dict[Apart, Any]:
        """By division that a reader may want: whether it reads a copy that is divided so."""
        if (name, reader) in self.away:
            return self.away[name, reader]
        use, places = self.space.uses[name][reader], self.places.by_buffer[name]
        user, op = self.layers.user(use), self.ops[self.layers.key(use.at)]
        operand = [position for _, position in self.layers.shared[use.at]].index(use.position)
        bringing: dict[Apart, list[Any]] = defaultdict(list)
        for copy in self.places.ring_copies(name):
            if copy.brought.get(user):
                bringing[copy.wanted.apart].append(copy.chosen)
        found = self.away[name, reader] = {apart: self.model.new_bool_var("") for apart in bringing}
        holding: dict[Any, list[Any]] = defaultdict(list)  # by tile
        for choice in op.holding(name):
            holding[choice.tiles[operand]].append(choice.chosen)
        wanting: dict[Apart, list[Any]] = defaultdict(list)
        for tile, chosen in holding.items():
            wanting[tile.apart] += chosen
            if tile.apart in found:
                near = sum(place.chosen for place in places if tile in place.agreed[user])
                self.model.add(found[tile.apart] >= sum(chosen) - near)
        for apart, away in found.items():
            self.model.add(away <= sum(bringing[apart]))
            self.model.add(away <= sum(wanting[apart]))
        return found
