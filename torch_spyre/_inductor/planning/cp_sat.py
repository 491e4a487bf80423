"""The best plan among given divisions, by a constraint solver: OR-Tools' CP-SAT, with a proof of how good it is.

What :mod:`joint_search` searches, written down as a whole: every op has one of its divisions, every buffer that stays
in LX has one place, which the divisions of its users must agree with or to which the ring brings a copy, what is alive
at an op fits, and the sum of the times is least. Divisions that have the same tiles of all shared buffers are one
choice. What alone costs more than the whole plan could still gain is left out: it is in no better plan. Equal layers
are one layer here: they get the same plan, so that a deep model takes hardly longer than a shallow one. The solver
begins with what the search found, and ends alike whenever it is given the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain, combinations, product
from math import prod
from operator import itemgetter
from typing import Any

from ...card import description
from .. import config
from ..layout.device_ir import LxPlacement
from .core_tiles import CoreTile, lx_placement
from .divisions import Slices, divisions
from .liveness import Use, last_needed
from .optimality import Optimality
from .search_space import Apart, SearchSpace, Stay, repeated

PICOSECONDS = 1_000_000  # per microsecond: the solver counts in whole numbers
WORKERS = 2
ALL = 8000  # divisions of all ops together up to which none is left out
SCHEMES = 4096  # ways in which several ops could write one buffer that are looked at
PAIRS = 15000  # of divisions between which the ring is asked, in a kernel: 0.3 ms each
ROUNDING = 1e-3  # microseconds

Shown = tuple[CoreTile | None, ...]  # by shared operand: what the cores have of it; None where they fold together
User = tuple[int, int]  # which op, which of its operands


def solve(space: SearchSpace, slices: Sequence[Slices], stays: Mapping[str, Stay]) -> tuple[list[Slices], Optimality]:
    """Improves on ``slices``, under which the buffers ``stays`` stay in LX."""
    return _Model(_solver_module(), space, slices, stays).solved()


def _solver_module() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ImportError(
            'SPYRE_SOLVER=exact needs OR-Tools: pip install "torch-spyre[solver]", or leave SPYRE_SOLVER at search'
        ) from error
    return cp_model


@dataclass
class _Choice:
    """A division of an op together with which of its buffers are in LX."""

    shown: Shown
    in_lx: frozenset[str]
    slices: Slices
    picoseconds: int
    chosen: Any = None  # the solver's Boolean


@dataclass
class _Op:
    """Ops of equal layers that share equal buffers."""

    at: int  # the first of them
    names: tuple[str, ...]  # by shared operand
    count: int = 0
    choices: list[_Choice] = field(default_factory=list)

    def holding(self, name: str) -> Iterator[_Choice]:
        return (choice for choice in self.choices if name in choice.in_lx)


@dataclass
class _Move:
    """A copy over the ring, from a place to a reader. Others that want the same or less of it read it there too."""

    wanted: CoreTile
    bytes: int
    microseconds: float
    brought: dict[User, set[CoreTile]]  # what the place itself does not offer them
    chosen: Any = None  # the solver's Boolean


@dataclass
class _Place:
    """Where a buffer may stay for one way to write it, and what its users may then have of it."""

    there: LxPlacement
    cores: int  # of its first user
    agreed: dict[User, set[CoreTile]]
    leads: tuple[CoreTile, ...]  # the tiles of the ops that decide where it is
    moves: dict[CoreTile, _Move] = field(default_factory=dict)  # by what is wanted
    chosen: Any = None  # the solver's Boolean
    moving: Any = 0  # the same: whether some reader has a copy

    def add(self, move: _Move) -> None:
        """Readers that want the same share a copy: the one that is made for the better of them."""
        same = self.moves.get(move.wanted)
        if same is None or move.microseconds < same.microseconds:
            self.moves[move.wanted] = move

    def in_lx(self, user: User) -> Iterator[CoreTile]:
        return chain(self.agreed[user], *(move.brought.get(user, ()) for move in self.moves.values()))


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


class _Model:
    def __init__(self, cp: Any, space: SearchSpace, slices: Sequence[Slices], stays: Mapping[str, Stay]) -> None:
        self.cp, self.space, self.given = cp, space, slices
        self.all_divisions = self.all_pairs = True  # none was left out that could be in a better plan
        self.shared = [sorted(space.shared[at], key=itemgetter(1)) for at in range(len(slices))]
        self.given_us = self._given_us(stays)
        self.layers = repeated([self._label(at) for at in range(len(slices))], fewest=3)
        self.alike = self._equal_buffers()
        self.layers_of = Counter(self.alike.values())  # by buffer that stands for others: how many
        self.ops = self._equal_ops()
        self.fewest: dict[int, int] = {}  # by op that stands for others: how many have one of its divisions at least
        for op in self.ops.values():
            at = self._first(op.at)
            self.fewest[at] = min(op.count, self.fewest.get(at, op.count))
        self.times = self._times(self._divisions())
        self.slack = self.given_us - self._least_us() + ROUNDING  # what a better plan could gain
        self.divisions = {
            at: [each for each in mine if self._excess(at, each) <= self.slack] for at, mine in self.times.items()
        }
        self.tiles = {name: self._tiles(name) for name in dict.fromkeys(self.alike.values())}
        self.places = {name: list(self._places(name)) for name in self.tiles}
        self._add_moves()
        self.places = {
            name: [each for each in places if self._serves_all(name, each)] for name, places in self.places.items()
        }
        for op in self.ops.values():
            op.choices = list(self._choices(op))
        self.model = cp.CpModel()
        self.away: dict[tuple[str, int], dict[Apart, Any]] = {}  # by buffer and reader
        self._choose_one_each()
        self._agree()
        self._limit_room()
        self._minimize()
        self._begin_with(stays)

    # --- equal layers

    def _label(self, at: int) -> object:
        """Equal for ops that can be divided alike and share the same of their operands."""
        space = self.space
        shared = tuple((position, name in space.clones) for name, position in self.shared[at])
        return space.keys[at], self.given[at] if at in space.fixed else None, shared

    def _first(self, at: int) -> int:
        """The op that stands for this one."""
        begin, period, end = self.layers
        return begin + (at - begin) % period if begin <= at < end else at

    def _equal_buffers(self) -> dict[str, str]:
        """By buffer: the one that stands for it, which the same ops of another layer use."""
        first: dict[object, str] = {}
        found = {}
        for name, shown in self.space.uses.items():
            key = (name in self.space.clones, *((self._first(use.at), use.position, use.writes) for use in shown))
            found[name] = first.setdefault(key, name)
        return found

    def _key(self, at: int) -> tuple[int, tuple[str, ...]]:
        return self._first(at), tuple(self.alike[name] for name, _ in self.shared[at])

    def _equal_ops(self) -> dict[tuple[int, tuple[str, ...]], _Op]:
        found: dict[tuple[int, tuple[str, ...]], _Op] = {}
        for at in range(len(self.space.ops)):
            key = self._key(at)
            op = found.setdefault(key, _Op(at, key[1]))
            op.count += 1
        return found

    # --- what can be chosen

    def _given_us(self, stays: Mapping[str, Stay]) -> float:
        """Microseconds of the plan that is known."""
        total = sum(self.space.copying_us(name, stay, self.given.__getitem__) for name, stay in stays.items())
        for at, slices in enumerate(self.given):
            in_lx = [position for name, position in self.shared[at] if name in stays]
            total += self.space.time(at, slices, _marked(len(self.space.ops[at].operands), in_lx))
        return total

    def _times(self, divided: Mapping[int, Iterable[Slices]]) -> dict[int, dict[Slices, float]]:
        """By op that stands for itself and by division: microseconds with all in LX that could be."""
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
        return sum(min(self.times[self._first(at)].values()) for at in range(len(self.given)))

    def _excess(self, at: int, slices: Slices) -> float:
        """Microseconds by which a plan with that division is longer than the least, or more."""
        times = self.times[at]
        return self.fewest[at] * (times[slices] - min(times.values()))

    def _divisions(self) -> dict[int, dict[Slices, None]]:
        """Of the ops that stand for themselves: all, if there are few; else the best and what follows elsewhere."""
        space = self.space
        found: dict[int, dict[Slices, None]] = defaultdict(dict)
        for at, slices in enumerate(self.given):
            found[self._first(at)][slices] = None
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
            for name, position in self.shared[at] if not space.folds_together(at, slices) else ():
                tile = space.core_tile(at, position, slices)
                for use in space.uses[name]:
                    theirs = None if use.at in space.fixed else space.aligned(use.at, use.position, tile)
                    other = self._first(use.at)
                    if theirs is not None and theirs not in found[other]:
                        found[other][theirs] = None
                        queue.append((other, theirs))
        return found

    def _shown(self, at: int, slices: Slices) -> Shown:
        shared = self.shared[at]
        if self.space.folds_together(at, slices):
            return (None,) * len(shared)
        return tuple(self.space.core_tile(at, position, slices) for _, position in shared)

    def _user(self, use: Use) -> User:
        return self._first(use.at), use.position

    def _tiles(self, name: str) -> dict[User, dict[CoreTile, Slices]]:
        """What its users can have of a buffer, and the fastest division of each that gives them that."""
        found: dict[User, dict[CoreTile, Slices]] = {}
        for at, position in map(self._user, self.space.uses[name]):
            mine = found[at, position] = {}
            for slices in sorted(self.divisions[at], key=self.times[at].__getitem__):
                if not self.space.folds_together(at, slices):
                    mine.setdefault(self.space.core_tile(at, position, slices), slices)
        return found

    def _places(self, name: str) -> Iterator[_Place]:
        """Where a buffer could stay: by what its writers have of it, or the first reader of an argument."""
        place, clone = self.space.place, name in self.space.clones
        tiles = self.tiles[name]
        leads: list[User] = []
        for use in self.space.uses[name]:
            if self._user(use) not in leads and (use.writes or clone and not leads):
                leads.append(self._user(use))
        for count, chosen in enumerate(product(*(tiles[user] for user in leads))):
            if count == SCHEMES:
                self.all_divisions = False
                return
            written, read = ([], list(chosen)) if clone else (list(chosen), [])
            there = place(name, written, read)
            if there is not None:
                agreed = {user: {tile} for user, tile in zip(leads, chosen, strict=True)}
                apart = chosen[0].apart
                for user in tiles.keys() - agreed.keys():
                    alike = (tile for tile in tiles[user] if tile.apart == apart[: len(tile.apart)])
                    agreed[user] = {tile for tile in alike if place(name, written, [*read, tile])}
                yield _Place(there, len(apart), agreed, chosen)

    def _serves_all(self, name: str, place: _Place) -> bool:
        return all(any(True for _ in place.in_lx(user)) for user in self.tiles[name])

    # --- over the ring

    def _add_moves(self) -> None:
        """Copies between divisions that could both be in a better plan; if they are many, between the fastest."""
        found = {name: list(self._pairs(name)) for name in self.places if self.space.may_move(name)}
        pairs = {name: mine for name, mine in found.items() if mine}
        if sum(map(len, pairs.values())) > PAIRS:
            self.all_pairs = False
            share = max(PAIRS // len(pairs), 1)
            pairs = {name: nsmallest(share, mine, key=itemgetter(0)) for name, mine in pairs.items()}
        for name, mine in pairs.items():
            for excess, place, use, tile in mine:
                move = self._move(name, place, use, tile)
                if move is not None and excess + self.layers_of[name] * move.microseconds <= self.slack:
                    place.add(move)

    def _pairs(self, name: str) -> Iterator[tuple[float, _Place, Use, CoreTile]]:
        """Of places and what a reader may want elsewhere, where the ring could pay; first by how much of the slack both
        take: what is given takes nothing."""
        space, tiles = self.space, self.tiles[name]
        first, *readers = space.uses[name]
        least = space.iterations[first.at] * description.constants()["ring_fixed_us"]
        saved = {user: self._saved(user, mine) for user, mine in tiles.items()}
        ever = sum(max(mine.values(), default=0) for mine in saved.values())
        writer = self._user(first)
        given = {
            self._user(use): space.core_tile(use.at, use.position, self.given[use.at]) for use in (first, *readers)
        }
        for user, use in {self._user(use): use for use in reversed(readers)}.items():
            others = ever - max(saved[user].values(), default=0) - max(saved[writer].values(), default=0)
            mine = {tile: self._excess(user[0], slices) for tile, slices in tiles[user].items()}
            for place in self.places[name]:
                (lead,) = place.leads
                excess = self._excess(writer[0], tiles[writer][lead])
                for tile, more in mine.items():
                    together = max(excess, more) if user[0] == writer[0] else excess + more
                    if together + self.layers_of[name] * least > self.slack:
                        break
                    pays = others + saved[writer][lead] + saved[user][tile] >= least
                    if pays and tile not in place.agreed[user]:
                        yield (-1.0 if (lead, tile) == (given[writer], given[user]) else together), place, use, tile

    def _saved(self, user: User, tiles: Iterable[CoreTile]) -> dict[CoreTile, float]:
        """By what an op has of one of its operands: microseconds that it saves at most if that is in LX."""
        (at, position), space = user, self.space
        op, found = space.ops[at], dict.fromkeys(tiles, 0.0)
        others = sorted({other for _, other in self.shared[at]} - {position})
        for in_lx in chain.from_iterable(combinations(others, n) for n in range(len(others) + 1)):
            through, inside = (
                space.costs.times(op, [(slices, operands) for slices in self.divisions[at]])
                for operands in (_marked(len(op.operands), in_lx), _marked(len(op.operands), (*in_lx, position)))
            )
            for slices, far, near in zip(self.divisions[at], through, inside, strict=True):
                tile = space.core_tile(at, position, slices)
                if tile in found:
                    found[tile] = max(found[tile], space.iterations[at] * (far - near))
        return found

    def _move(self, name: str, place: _Place, use: Use, tile: CoreTile) -> _Move | None:
        tiles, first = self.tiles[name], self.space.uses[name][0]
        divided = {
            first.at: tiles[self._user(first)][place.leads[0]],
            use.at: tiles[self._user(use)][tile],
        }
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
            if user != self._user(first)
        }
        return _Move(tile, found.there.bytes, found.microseconds, brought)

    def _choices(self, op: _Op) -> Iterator[_Choice]:
        """Divisions that show the same are one choice, for each set of buffers that may be in_lx: the fastest."""
        at = self._first(op.at)
        positions = [position for _, position in self.shared[op.at]]
        placed = [
            set(chain.from_iterable(place.in_lx((at, position)) for place in self.places[name]))
            for name, position in zip(op.names, positions, strict=True)
        ]
        alike: dict[Shown, list[Slices]] = defaultdict(list)
        for slices in self.divisions[at]:
            alike[self._shown(at, slices)].append(slices)
        options: list[tuple[Shown, frozenset[str], list[tuple[Slices, tuple[bool, ...]]]]] = []
        for shown, same in alike.items():
            fits = [tile in there for tile, there in zip(shown, placed, strict=True)]
            names = {name for name, ok in zip(op.names, fits, strict=True) if ok}
            names -= {name for name, ok in zip(op.names, fits, strict=True) if not ok}
            for chosen in chain.from_iterable(combinations(sorted(names), n) for n in range(len(names) + 1)):
                inside = [p for p, name in zip(positions, op.names, strict=True) if name in chosen]
                operands = _marked(len(self.space.ops[at].operands), inside)
                options.append((shown, frozenset(chosen), [(slices, operands) for slices in same]))
        costs, mine, iterations = self.space.costs, self.space.ops[at], self.space.iterations[at]
        most = min(self.times[at].values()) + self.slack / op.count
        costs.times(mine, [each for _, _, choices in options for each in choices])  # all at once
        for shown, in_lx, choices in options:
            ranked = zip(costs.times(mine, choices), choices, strict=True)
            time, (slices, _) = min(ranked, key=lambda each: (each[0], each[1][0] != self.given[op.at]))
            if iterations * time <= most:
                yield _Choice(shown, in_lx, slices, int(iterations * time * PICOSECONDS))

    # --- the model

    def _choose_one_each(self) -> None:
        stands: dict[int, _Op] = {}
        for op in self.ops.values():
            for choice in op.choices:
                choice.chosen = self.model.new_bool_var("")
            self.model.add_exactly_one(choice.chosen for choice in op.choices)
            other = stands.setdefault(self._first(op.at), op)
            if other is not op:
                self._divide_alike(op, other)
        for places in self.places.values():
            for place in places:
                place.chosen = self.model.new_bool_var("")
                self._choose_moves(place)
            self.model.add_at_most_one(place.chosen for place in places)

    def _choose_moves(self, place: _Place) -> None:
        """At most one to each division that is wanted, and for each reader that is alone with what it wants."""
        if not place.moves:
            return
        place.moving = self.model.new_bool_var("")
        self.model.add_implication(place.moving, place.chosen)
        rivals: dict[object, list[Any]] = defaultdict(list)
        for move in place.moves.values():
            move.chosen = self.model.new_bool_var("")
            rivals[move.wanted.apart].append(move.chosen)
            readers = [user for user, tiles in move.brought.items() if tiles]
            rivals[readers[0] if len(readers) == 1 else None].append(move.chosen)
        shared = rivals.pop(None, [])
        for together in (*rivals.values(), *([each] for each in shared)):
            self.model.add(sum(together) <= place.moving)
        self.model.add(sum(move.chosen for move in place.moves.values()) >= place.moving)

    def _divide_alike(self, op: _Op, other: _Op) -> None:
        mine, theirs = (_by(each.choices, lambda choice: choice.shown) for each in (op, other))
        for shown in {**mine, **theirs}:
            self.model.add(sum(mine[shown]) == sum(theirs[shown]))

    def _agree(self) -> None:
        """A buffer is in LX for all of its users or for none, and has for each what that takes tile of: where it stays
        or, for some readers, where the ring brought it."""
        wanting: dict[tuple[str, CoreTile], list[Any]] = defaultdict(list)
        for op in self.ops.values():
            for name in dict.fromkeys(op.names):
                operands = [operand for operand, other in enumerate(op.names) if other == name]
                users = [(self._first(op.at), self.shared[op.at][operand][1]) for operand in operands]
                holding = _by(
                    op.holding(name),
                    lambda choice, operands=operands: tuple(choice.shown[operand] for operand in operands),
                )
                self._agree_on(self.places[name], users, holding)
                for tiles, chosen in holding.items():
                    for tile in set(tiles):
                        wanting[name, tile] += chosen
        for name, places in self.places.items():
            for place in places:
                for move in place.moves.values():
                    self.model.add(move.chosen <= sum(wanting[name, move.wanted]))

    def _agree_on(
        self, places: list[_Place], users: list[User], holding: dict[tuple[CoreTile, ...], list[Any]]
    ) -> None:
        """``users``: operands of one op, ``holding``: its choices by what it has there. It finds all in one copy."""
        self.model.add(sum(chain.from_iterable(holding.values())) == sum(place.chosen for place in places))
        offered: dict[tuple[User, CoreTile], dict[int, Any]] = defaultdict(dict)
        for place in places:
            near = []
            for user in users:
                for tile in place.agreed[user]:
                    offered[user, tile][id(place)] = place.chosen
                for move in place.moves.values():
                    for tile in move.brought.get(user, ()):
                        offered[user, tile][id(move)] = move.chosen
            for tiles, chosen in holding.items():
                if all(tile in place.agreed[user] for user, tile in zip(users, tiles, strict=True)):
                    near += chosen
            copies = [move.chosen for move in place.moves.values() if move.brought.get(users[0])]
            self.model.add(place.chosen <= sum(near) + sum(copies))
        for tiles, chosen in holding.items():
            options = [offered[user, tile] for user, tile in zip(users, tiles, strict=True)]
            common = set(options[0]).intersection(*options[1:])
            self.model.add(sum(chosen) <= sum(options[0][each] for each in options[0] if each in common))

    # --- room

    def _limit_room(self) -> None:
        alive: list[Counter[tuple[str, _Source | _Copies]]] = [Counter() for _ in self.space.ops]
        for name in self.space.uses:
            for at, what in self._alive(name):
                alive[at][self.alike[name], what] += 1
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
        if not any(place.moves for place in self.places[self.alike[name]]):
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
        places = self.places[name]
        if isinstance(what, _Source):
            return max((place.there.bytes for place in places), default=0)
        return sum(sorted(self._copied(name).values())[-len(what.begun) :])

    def _copied(self, name: str) -> dict[Apart, int]:
        """By division that some readers want: how much of LX a copy takes at least."""
        found: dict[Apart, int] = {}
        for move in chain.from_iterable(place.moves.values() for place in self.places[name]):
            found[move.wanted.apart] = min(move.bytes, found.get(move.wanted.apart, move.bytes))
        return found

    def _sources(self, name: str, what: _Source) -> Iterator[tuple[int, Any]]:
        """Bytes of a buffer where it was written, and whether they are taken: until all readers there have read it, and
        the ring has brought it to the others."""
        needed = self._needed(name, what) if what.to_come else None
        for place in self.places[name]:
            there = place.chosen if what.in_span else place.moving
            if needed is not None and place.moves:
                before, there = there, self.model.new_bool_var("")
                self.model.add(there >= before + needed - 1)
            yield place.there.bytes, there

    def _needed(self, name: str, what: _Source) -> Any:
        """Whether some reader to come reads it there, or is the first to want it elsewhere."""
        needed = self.model.new_bool_var("")
        stays = sum(place.chosen for place in self.places[name])
        for reader in what.to_come:
            self.model.add(needed >= stays - sum(self._away(name, reader).values()))
        for reader in what.entering:
            for apart, away in self._away(name, reader).items():
                before = [self._away(name, other).get(apart, 0) for other in range(1, reader)]
                self.model.add(needed >= away - sum(before))
        return needed

    def _copies(self, name: str, what: _Copies) -> Iterator[tuple[int, Any]]:
        """The same of the copies: from the first op that reads one to the last."""
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
        use = self.space.uses[name][reader]
        user, op = self._user(use), self.ops[self._key(use.at)]
        operand = [position for _, position in self.shared[use.at]].index(use.position)
        holding = _by(op.holding(name), lambda choice: choice.shown[operand])
        bringing: dict[Apart, list[Any]] = defaultdict(list)
        for move in chain.from_iterable(place.moves.values() for place in self.places[name]):
            if move.brought.get(user):
                bringing[move.wanted.apart].append(move.chosen)
        found = self.away[name, reader] = {apart: self.model.new_bool_var("") for apart in bringing}
        wanting: dict[Apart, list[Any]] = defaultdict(list)
        for tile, chosen in holding.items():
            wanting[tile.apart] += chosen
            if tile.apart in found:
                near = sum(place.chosen for place in self.places[name] if tile in place.agreed[user])
                self.model.add(found[tile.apart] >= sum(chosen) - near)
        for apart, away in found.items():
            self.model.add(away <= sum(bringing[apart]))
            self.model.add(away <= sum(wanting[apart]))
        return found

    # --- what is asked

    def _minimize(self) -> None:
        total = sum(op.count * choice.picoseconds * choice.chosen for op in self.ops.values() for choice in op.choices)
        for name, count in Counter(self.alike[name] for name in self.space.clones).items():
            for place in self.places[name]:
                copying = self.space.copying_us(name, Stay(place.there), _always((place.cores,)))
                total += count * int(copying * PICOSECONDS) * place.chosen
        for name, count in self.layers_of.items():
            for move in chain.from_iterable(place.moves.values() for place in self.places[name]):
                total += count * int(move.microseconds * PICOSECONDS) * move.chosen
        self.model.minimize(total)

    def _begin_with(self, stays: Mapping[str, Stay]) -> None:
        """The solution that is known: what differs between layers is taken as in the first."""
        for op in self.ops.values():
            shown = self._shown(op.at, self.given[op.at])
            in_lx = {self.alike[name] for name, _ in self.shared[op.at] if name in stays}
            for choice in op.choices:
                self.model.add_hint(choice.chosen, choice.shown == shown and choice.in_lx == in_lx)
        for name, places in self.places.items():
            users = [(use.at, use.position) for use in self.space.uses[name]]
            tiles = {each: self.space.core_tile(*each, self.given[each[0]]) for each in users}
            moved = {tiles[move.as_in] for move in stays[name].moves} if name in stays else set()
            for place in places:
                there = name in stays and set(place.leads) <= set(tiles.values())
                self.model.add_hint(place.chosen, there)
                if place.moves:
                    self.model.add_hint(place.moving, there and bool(moved))
                for move in place.moves.values():
                    self.model.add_hint(move.chosen, there and move.wanted in moved)

    def solved(self) -> tuple[list[Slices], Optimality]:
        solver = self.cp.CpSolver()
        solver.parameters.num_workers = WORKERS
        solver.parameters.interleave_search = True  # with the limit below: the same every time
        solver.parameters.max_deterministic_time = config.solver_seconds
        status = solver.solve(self.model)
        found = list(self.given)
        if status in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            chosen = {
                key: next(choice.slices for choice in op.choices if solver.boolean_value(choice.chosen))
                for key, op in self.ops.items()
            }
            found = [chosen[self._key(at)] for at in range(len(found))]
        limits = {
            "candidates": not self.all_divisions,
            "layers alike": self.layers[1] > 0,
            "ring between candidates": not self.all_pairs,
        }
        scope = ", ".join(limit for limit, holds in limits.items() if holds) or "all"
        if status == self.cp.INFEASIBLE:  # equal layers cannot be divided alike and be as fast as what is given
            return found, Optimality("optimal", self.given_us, scope)
        bound = min(solver.best_objective_bound, self.given_us * PICOSECONDS) - 1  # as sums are rounded
        return found, Optimality(solver.status_name(status).lower(), max(bound, 0) / PICOSECONDS, scope)


def _marked(count: int, those: Iterable[int]) -> tuple[bool, ...]:
    marked = set(those)
    return tuple(position in marked for position in range(count))


def _always(slices: Slices) -> Callable[[int], Slices]:
    return lambda _: slices


def _by(choices: Any, key: Any) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for choice in choices:
        found[key(choice)].append(choice.chosen)
    return found
