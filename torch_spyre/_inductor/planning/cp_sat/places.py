"""Where buffers may stay in LX, what their users then have of them, and which copies the ring may bring to readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain, combinations, product
from math import prod
from operator import itemgetter
from typing import Any

from ....card import description
from ...layout.device_ir import LxPlacement
from ..core_tiles import CoreTile, lx_placement
from ..divisions import Slices
from ..liveness import Use
from .candidates import Candidates, marked
from .equal_layers import User

SCHEMES = 4096  # ways in which several ops could write one buffer that are looked at
PAIRS = 15000  # of divisions between which the ring is asked, in a kernel: 0.3 ms each


@dataclass
class RingCopy:
    """A copy over the ring, from a place to a reader. Others that want the same or less of it read it there too."""

    wanted: CoreTile
    bytes: int
    microseconds: float
    brought: dict[User, set[CoreTile]]  # what the place itself does not offer them
    chosen: Any = None  # the solver's Boolean


@dataclass
class Place:
    """Where a buffer may stay for one way to write it, and what its users may then have of it."""

    there: LxPlacement
    cores: int  # of its first user
    agreed: dict[User, set[CoreTile]]
    leads: tuple[CoreTile, ...]  # the tiles of the ops that decide where it is
    copies: dict[CoreTile, RingCopy] = field(default_factory=dict)  # by what is wanted
    chosen: Any = None  # the solver's Boolean
    copied: Any = 0  # the same: whether some reader has a copy

    def add(self, copy: RingCopy) -> None:
        """Readers that want the same share a copy: the one that is made for the better of them."""
        same = self.copies.get(copy.wanted)
        if same is None or copy.microseconds < same.microseconds:
            self.copies[copy.wanted] = copy

    def in_lx(self, user: User) -> Iterator[CoreTile]:
        """The tiles that a user finds in LX, here or in a copy."""
        return chain(self.agreed[user], *(copy.brought.get(user, ()) for copy in self.copies.values()))


class Places:
    """``by_buffer``: the places of each buffer that stands for others. ``all_schemes`` and ``all_pairs`` are false if
    there were more ways to write a buffer, or pairs for the ring, than could be looked at."""

    def __init__(self, candidates: Candidates) -> None:
        self.candidates, self.layers, self.space = candidates, candidates.layers, candidates.space
        self.all_schemes = self.all_pairs = True
        self.layers_of = Counter(self.layers.buffers.values())  # by buffer that stands for others: how many
        self.tiles = {name: self._tiles(name) for name in dict.fromkeys(self.layers.buffers.values())}
        self.by_buffer = {name: list(self._places(name)) for name in self.tiles}
        self._add_ring_copies()
        self.by_buffer = {
            name: [each for each in places if self._serves_all(name, each)] for name, places in self.by_buffer.items()
        }

    def ring_copies(self, name: str) -> Iterator[RingCopy]:
        return chain.from_iterable(place.copies.values() for place in self.by_buffer[name])

    def _tiles(self, name: str) -> dict[User, dict[CoreTile, Slices]]:
        """What its users can have of a buffer, and the fastest division of each that gives them that."""
        found: dict[User, dict[CoreTile, Slices]] = {}
        for at, position in map(self.layers.user, self.space.uses[name]):
            mine = found[at, position] = {}
            for slices in sorted(self.candidates.divisions[at], key=self.candidates.times[at].__getitem__):
                if not self.space.folds_together(at, slices):
                    mine.setdefault(self.space.core_tile(at, position, slices), slices)
        return found

    def _places(self, name: str) -> Iterator[Place]:
        """Where a buffer could stay: by what its writers have of it, or the first reader of an argument."""
        place, clone = self.space.place, name in self.space.clones
        tiles = self.tiles[name]
        leads: list[User] = []
        for use in self.space.uses[name]:
            user = self.layers.user(use)
            if user not in leads and (use.writes or clone and not leads):
                leads.append(user)
        for count, chosen in enumerate(product(*(tiles[user] for user in leads))):
            if count == SCHEMES:
                self.all_schemes = False
                return
            written, read = ([], list(chosen)) if clone else (list(chosen), [])
            there = place(name, written, read)
            if there is not None:
                agreed = {user: {tile} for user, tile in zip(leads, chosen, strict=True)}
                apart = chosen[0].apart
                for user in tiles.keys() - agreed.keys():
                    alike = (tile for tile in tiles[user] if tile.apart == apart[: len(tile.apart)])
                    agreed[user] = {tile for tile in alike if place(name, written, [*read, tile])}
                yield Place(there, len(apart), agreed, chosen)

    def _serves_all(self, name: str, place: Place) -> bool:
        return all(any(True for _ in place.in_lx(user)) for user in self.tiles[name])

    # --- over the ring

    def _add_ring_copies(self) -> None:
        """Copies between divisions that could both be in a better plan; if they are many, between the fastest."""
        found = {name: list(self._pairs(name)) for name in self.by_buffer if self.space.may_move(name)}
        pairs = {name: mine for name, mine in found.items() if mine}
        if sum(map(len, pairs.values())) > PAIRS:
            self.all_pairs = False
            share = max(PAIRS // len(pairs), 1)
            pairs = {name: nsmallest(share, mine, key=itemgetter(0)) for name, mine in pairs.items()}
        for name, mine in pairs.items():
            for excess, place, use, tile in mine:
                copy = self._ring_copy(name, place, use, tile)
                if copy is not None and excess + self.layers_of[name] * copy.microseconds <= self.candidates.slack:
                    place.add(copy)

    def _pairs(self, name: str) -> Iterator[tuple[float, Place, Use, CoreTile]]:
        """Pairs of a place and what a reader may want elsewhere, where the ring could pay. First in each: how much of
        the slack both take; what is given takes nothing."""
        space, layers, tiles = self.space, self.layers, self.tiles[name]
        excess_of, slack, given_slices = self.candidates.excess, self.candidates.slack, self.candidates.given
        first, *readers = space.uses[name]
        least = space.iterations[first.at] * description.constants()["ring_fixed_us"]
        saved = {user: self._saved(user, mine) for user, mine in tiles.items()}
        ever = sum(max(mine.values(), default=0) for mine in saved.values())
        writer = layers.user(first)
        given = {
            layers.user(use): space.core_tile(use.at, use.position, given_slices[use.at]) for use in (first, *readers)
        }
        for user, use in {layers.user(use): use for use in reversed(readers)}.items():
            others = ever - max(saved[user].values(), default=0) - max(saved[writer].values(), default=0)
            mine = {tile: excess_of(user[0], slices) for tile, slices in tiles[user].items()}
            for place in self.by_buffer[name]:
                (lead,) = place.leads
                excess = excess_of(writer[0], tiles[writer][lead])
                for tile, more in mine.items():
                    together = max(excess, more) if user[0] == writer[0] else excess + more
                    if together + self.layers_of[name] * least > slack:
                        break
                    pays = others + saved[writer][lead] + saved[user][tile] >= least
                    if pays and tile not in place.agreed[user]:
                        yield (-1.0 if (lead, tile) == (given[writer], given[user]) else together), place, use, tile

    def _saved(self, user: User, tiles: Iterable[CoreTile]) -> dict[CoreTile, float]:
        """By what an op has of one of its operands: microseconds that it saves at most if that is in LX."""
        (at, position), space = user, self.space
        op, found, split = space.ops[at], dict.fromkeys(tiles, 0.0), self.candidates.divisions[at]
        others = sorted({other for _, other in self.layers.shared[at]} - {position})
        for in_lx in chain.from_iterable(combinations(others, n) for n in range(len(others) + 1)):
            through, inside = (
                space.costs.times(op, [(slices, operands) for slices in split])
                for operands in (marked(len(op.operands), in_lx), marked(len(op.operands), (*in_lx, position)))
            )
            for slices, far, near in zip(split, through, inside, strict=True):
                tile = space.core_tile(at, position, slices)
                if tile in found:
                    found[tile] = max(found[tile], space.iterations[at] * (far - near))
        return found

    def _ring_copy(self, name: str, place: Place, use: Use, tile: CoreTile) -> RingCopy | None:
        tiles, first = self.tiles[name], self.space.uses[name][0]
        writer = self.layers.user(first)
        divided = {first.at: tiles[writer][place.leads[0]], use.at: tiles[self.layers.user(use)][tile]}
        found = self.space.move(first.at, [use], divided.__getitem__)
        if found is None:
            return None
        box = CoreTile(found.there.origin, tile.apart, found.there.size)
        brought = {
            user: {
                each
                for each in mine
                if each.apart == tile.apart
                and prod(each.size) <= prod(tile.size)
                and each not in place.agreed[user]
                and lx_placement([box], [each])
            }
            for user, mine in tiles.items()
            if user != writer
        }
        return RingCopy(tile, found.there.bytes, found.microseconds, brought)
