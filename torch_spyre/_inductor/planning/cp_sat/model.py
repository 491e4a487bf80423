"""The constraint model: a Boolean for each choice, place and copy; what they must agree on; what is least."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from ..core_tiles import CoreTile
from ..divisions import Slices
from ..search_space import Stay
from .candidates import PICOSECONDS, Candidates
from .choices import Choice, OpChoices
from .equal_layers import OpKey, User
from .lx_room import LxRoom
from .places import Place, Places


class Model:
    """``solver_model``: what the solver solves."""

    def __init__(self, cp: Any, candidates: Candidates, places: Places, ops: dict[OpKey, OpChoices]) -> None:
        self.candidates, self.layers, self.space = candidates, candidates.layers, candidates.space
        self.places, self.ops = places, ops
        self.solver_model = cp.CpModel()
        self._choose_one_each()
        self._agree()
        LxRoom(self.solver_model, self.layers, places, ops).limit()
        self._minimize()

    def chosen_divisions(self, solver: Any) -> dict[OpKey, Slices]:
        """By op: its division in the solution that the solver found."""
        return {
            key: next(choice.slices for choice in op.choices if solver.boolean_value(choice.chosen))
            for key, op in self.ops.items()
        }

    def _choose_one_each(self) -> None:
        """One choice of each op, one place at most of each buffer; ops that are divided alike have the same tiles."""
        model = self.solver_model
        first_of: dict[int, OpChoices] = {}
        for op in self.ops.values():
            for choice in op.choices:
                choice.chosen = model.new_bool_var("")
            model.add_exactly_one(choice.chosen for choice in op.choices)
            other = first_of.setdefault(self.layers.first(op.at), op)
            if other is not op:
                self._divide_alike(op, other)
        for places in self.places.by_buffer.values():
            for place in places:
                place.chosen = model.new_bool_var("")
                self._choose_copies(place)
            model.add_at_most_one(place.chosen for place in places)

    def _divide_alike(self, op: OpChoices, other: OpChoices) -> None:
        mine, theirs = (_booleans_by(each.choices, lambda choice: choice.tiles) for each in (op, other))
        for tiles in {**mine, **theirs}:
            self.solver_model.add(sum(mine[tiles]) == sum(theirs[tiles]))

    def _choose_copies(self, place: Place) -> None:
        """At most one to each division that is wanted, and for each reader that is alone with what it wants."""
        if not place.copies:
            return
        model = self.solver_model
        place.copied = model.new_bool_var("")
        model.add_implication(place.copied, place.chosen)
        rivals: dict[object, list[Any]] = defaultdict(list)
        for copy in place.copies.values():
            copy.chosen = model.new_bool_var("")
            rivals[copy.wanted.apart].append(copy.chosen)
            readers = [user for user, tiles in copy.brought.items() if tiles]
            rivals[readers[0] if len(readers) == 1 else None].append(copy.chosen)
        shared = rivals.pop(None, [])
        for together in (*rivals.values(), *([each] for each in shared)):
            model.add(sum(together) <= place.copied)
        model.add(sum(copy.chosen for copy in place.copies.values()) >= place.copied)

    def _agree(self) -> None:
        """A buffer is in LX for all of its users or for none, and each has the tile of it that its choice takes: where
        the buffer stays or, for some readers, where the ring brought it."""
        wanting: dict[tuple[str, CoreTile], list[Any]] = defaultdict(list)
        for op in self.ops.values():
            for name in dict.fromkeys(op.names):
                operands = [operand for operand, other in enumerate(op.names) if other == name]
                at, shared = self.layers.first(op.at), self.layers.shared[op.at]
                users = [(at, shared[operand][1]) for operand in operands]
                holding = _booleans_by(
                    op.holding(name),
                    lambda choice, operands=operands: tuple(choice.tiles[operand] for operand in operands),
                )
                self._agree_on(self.places.by_buffer[name], users, holding)
                for tiles, chosen in holding.items():
                    for tile in set(tiles):
                        wanting[name, tile] += chosen
        for name in self.places.by_buffer:
            for copy in self.places.ring_copies(name):
                self.solver_model.add(copy.chosen <= sum(wanting[name, copy.wanted]))

    def _agree_on(self, places: list[Place], users: list[User], holding: dict[tuple[CoreTile, ...], list[Any]]) -> None:
        """``users``: operands of one op, ``holding``: its choices by what it has there. It finds all in one copy."""
        model = self.solver_model
        model.add(sum(chain.from_iterable(holding.values())) == sum(place.chosen for place in places))
        offered: dict[tuple[User, CoreTile], dict[int, Any]] = defaultdict(dict)
        for place in places:
            near = []
            for user in users:
                for tile in place.agreed[user]:
                    offered[user, tile][id(place)] = place.chosen
                for copy in place.copies.values():
                    for tile in copy.brought.get(user, ()):
                        offered[user, tile][id(copy)] = copy.chosen
            for tiles, chosen in holding.items():
                if all(tile in place.agreed[user] for user, tile in zip(users, tiles, strict=True)):
                    near += chosen
            copies = [copy.chosen for copy in place.copies.values() if copy.brought.get(users[0])]
            model.add(place.chosen <= sum(near) + sum(copies))
        for tiles, chosen in holding.items():
            options = [offered[user, tile] for user, tile in zip(users, tiles, strict=True)]
            common = set(options[0]).intersection(*options[1:])
            model.add(sum(chosen) <= sum(options[0][each] for each in options[0] if each in common))

    def _minimize(self) -> None:
        """The picoseconds of all ops, of copies of arguments to LX and of copies over the ring."""
        total = sum(op.count * choice.picoseconds * choice.chosen for op in self.ops.values() for choice in op.choices)
        for name, count in Counter(self.layers.buffers[name] for name in self.space.clones).items():
            for place in self.places.by_buffer[name]:
                copying = self.space.copying_us(name, Stay(place.there), _always((place.cores,)))
                total += count * int(copying * PICOSECONDS) * place.chosen
        for name, count in self.places.layers_of.items():
            for copy in self.places.ring_copies(name):
                total += count * int(copy.microseconds * PICOSECONDS) * copy.chosen
        self.solver_model.minimize(total)

    def begin_with(self, stays: Mapping[str, Stay]) -> None:
        """Hints the solution that is known: what differs between layers is taken as in the first."""
        hint, given = self.solver_model.add_hint, self.candidates.given
        for op in self.ops.values():
            tiles = self.candidates.shared_tiles(op.at, given[op.at])
            in_lx = {self.layers.buffers[name] for name, _ in self.layers.shared[op.at] if name in stays}
            for choice in op.choices:
                hint(choice.chosen, choice.tiles == tiles and choice.in_lx == in_lx)
        for name, places in self.places.by_buffer.items():
            users = [(use.at, use.position) for use in self.space.uses[name]]
            of_users = {each: self.space.core_tile(*each, given[each[0]]) for each in users}
            moved = {of_users[move.as_in] for move in stays[name].moves} if name in stays else set()
            for place in places:
                there = name in stays and set(place.leads) <= set(of_users.values())
                hint(place.chosen, there)
                if place.copies:
                    hint(place.copied, there and bool(moved))
                for copy in place.copies.values():
                    hint(copy.chosen, there and copy.wanted in moved)


def _booleans_by(choices: Iterable[Choice], key: Callable[..., Any]) -> dict[Any, list[Any]]:
    """The solver's Booleans of choices, by what a key makes of each."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for choice in choices:
        found[key(choice)].append(choice.chosen)
    return found


def _always(slices: Slices) -> Callable[[int], Slices]:
    return lambda _: slices
