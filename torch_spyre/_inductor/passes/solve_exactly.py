"""The best plan among given divisions, by a constraint solver: OR-Tools' CP-SAT, with a proof of how good it is.

What :mod:`plan_together` searches, written down as a whole: every op has one of its divisions, every buffer that stays
in LX has one place, which the divisions of its users must agree with, what is alive at an op fits, and the sum of the
times is least. Divisions that show the same parts of all shared buffers are one choice. Equal layers are one layer
here: they get the same plan, so that a deep model takes hardly longer than a shallow one. The solver begins with what
the search found, and ends alike whenever it is given the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from operator import itemgetter
from typing import Any

from .. import config
from .divisions import Slices, divisions
from .problem import Problem, Stay, repeated
from .proof import Proof
from .regions import Part, Residence

PICOSECONDS = 1_000_000  # per microsecond: the solver counts in whole numbers
WORKERS = 2
ALL = 8000  # divisions of all ops together up to which none is left out
SCHEMES = 4096  # ways in which several ops could write one buffer that are looked at

Shown = tuple[Part | None, ...]  # by shared side: what the cores have of it; None where they fold together
User = tuple[int, int]  # which op, which of its sides


def solve_exactly(problem: Problem, slices: Sequence[Slices], stays: Mapping[str, Stay]) -> tuple[list[Slices], Proof]:
    """Improves on ``slices``, under which the buffers ``stays`` stay in LX."""
    return _Model(_solver_module(), problem, slices, stays).solved()


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
    held: frozenset[str]
    slices: Slices
    picoseconds: int
    chosen: Any = None  # the solver's Boolean


@dataclass
class _Op:
    """Ops of equal layers that share equal buffers."""

    at: int  # the first of them
    names: tuple[str, ...]  # by shared side
    count: int = 0
    choices: list[_Choice] = field(default_factory=list)

    def holding(self, side: int) -> Iterator[_Choice]:
        return (choice for choice in self.choices if self.names[side] in choice.held)


@dataclass
class _Place:
    """Where a buffer may stay for one way to write it, and what its users may then have of it."""

    there: Residence
    cores: int  # of its first user
    agreed: dict[User, set[Part]]
    chosen: Any = None  # the solver's Boolean


class _Model:
    def __init__(self, cp: Any, problem: Problem, slices: Sequence[Slices], stays: Mapping[str, Stay]) -> None:
        self.cp, self.problem, self.given = cp, problem, slices
        self.all_divisions = True  # none was left out
        self.shared = [sorted(problem.shared[at], key=itemgetter(1)) for at in range(len(slices))]
        self.layers = repeated([self._label(at) for at in range(len(slices))], fewest=3)
        self.alike = self._equal_buffers()
        self.ops = self._equal_ops()
        self.divisions = self._divisions()
        self.places = {name: list(self._places(name)) for name in dict.fromkeys(self.alike.values())}
        for op in self.ops.values():
            op.choices = list(self._choices(op))
        self.model = cp.CpModel()
        self._choose_one_each()
        self._agree()
        self._limit_room()
        self._minimize()
        self._begin_with(stays)

    # --- equal layers

    def _label(self, at: int) -> object:
        """Equal for ops that can be divided alike and share the same of their sides."""
        problem = self.problem
        shared = tuple((position, name in problem.clones) for name, position in self.shared[at])
        return problem.keys[at], self.given[at] if at in problem.fixed else None, shared

    def _first(self, at: int) -> int:
        """The op that stands for this one."""
        begin, period, end = self.layers
        return begin + (at - begin) % period if begin <= at < end else at

    def _equal_buffers(self) -> dict[str, str]:
        """By buffer: the one that stands for it, which the same ops of another layer use."""
        first: dict[object, str] = {}
        found = {}
        for name, shown in self.problem.uses.items():
            key = (name in self.problem.clones, *((self._first(use.at), use.position, use.writes) for use in shown))
            found[name] = first.setdefault(key, name)
        return found

    def _key(self, at: int) -> tuple[int, tuple[str, ...]]:
        return self._first(at), tuple(self.alike[name] for name, _ in self.shared[at])

    def _equal_ops(self) -> dict[tuple[int, tuple[str, ...]], _Op]:
        found: dict[tuple[int, tuple[str, ...]], _Op] = {}
        for at in range(len(self.problem.ops)):
            key = self._key(at)
            op = found.setdefault(key, _Op(at, key[1]))
            op.count += 1
        return found

    # --- what can be chosen

    def _divisions(self) -> dict[int, dict[Slices, None]]:
        """Of the ops that stand for themselves: all, if there are few; else the best and what follows elsewhere."""
        problem = self.problem
        found: dict[int, dict[Slices, None]] = defaultdict(dict)
        for at, slices in enumerate(self.given):
            found[self._first(at)][slices] = None
        free = [at for at in found if at not in problem.fixed]
        every = {at: list(divisions(problem.plan, problem.ops[at], any_number=True)) for at in free}
        if sum(map(len, every.values())) <= ALL:
            for at in free:
                found[at].update(dict.fromkeys(every[at]))
            return found
        self.all_divisions = False
        for at in free:
            found[at].update(dict.fromkeys(problem.candidates(at)))
        queue = [(at, slices) for at, mine in found.items() for slices in mine]
        while queue:
            at, slices = queue.pop()
            for name, position in self.shared[at] if not problem.folds_together(at, slices) else ():
                part = problem.part(at, position, slices)
                for use in problem.uses[name]:
                    theirs = None if use.at in problem.fixed else problem.aligned(use.at, use.position, part)
                    other = self._first(use.at)
                    if theirs is not None and theirs not in found[other]:
                        found[other][theirs] = None
                        queue.append((other, theirs))
        return found

    def _shown(self, at: int, slices: Slices) -> Shown:
        shared = self.shared[at]
        if self.problem.folds_together(at, slices):
            return (None,) * len(shared)
        return tuple(self.problem.part(at, position, slices) for _, position in shared)

    def _places(self, name: str) -> Iterator[_Place]:
        """Where a buffer could stay: by what its writers have of it, or the first reader of an argument."""
        place, clone = self.problem.place, name in self.problem.clones
        parts: dict[User, list[Part]] = {}
        leads: list[User] = []
        for use in self.problem.uses[name]:
            user = (self._first(use.at), use.position)
            mine = (each for each in self.divisions[user[0]] if not self.problem.folds_together(user[0], each))
            parts[user] = list(dict.fromkeys(self.problem.part(*user, slices) for slices in mine))
            if user not in leads and (use.writes or clone and not leads):
                leads.append(user)
        for count, chosen in enumerate(product(*(parts[user] for user in leads))):
            if count == SCHEMES:
                self.all_divisions = False
                return
            written, read = ([], list(chosen)) if clone else (list(chosen), [])
            there = place(name, written, read)
            if there is not None:
                agreed = {user: {part} for user, part in zip(leads, chosen, strict=True)}
                for user in parts.keys() - agreed.keys():
                    agreed[user] = {part for part in parts[user] if place(name, written, [*read, part])}
                if all(agreed.values()):
                    yield _Place(there, len(chosen[0].apart), agreed)

    def _choices(self, op: _Op) -> Iterator[_Choice]:
        """Divisions that show the same are one choice, for each set of buffers that may be held: the fastest."""
        at = self._first(op.at)
        positions = [position for _, position in self.shared[op.at]]
        placed = [
            set(chain.from_iterable(place.agreed[at, position] for place in self.places[name]))
            for name, position in zip(op.names, positions, strict=True)
        ]
        alike: dict[Shown, list[Slices]] = defaultdict(list)
        for slices in self.divisions[at]:
            alike[self._shown(at, slices)].append(slices)
        options: list[tuple[Shown, frozenset[str], list[tuple[Slices, tuple[bool, ...]]]]] = []
        for shown, same in alike.items():
            fits = [part in there for part, there in zip(shown, placed, strict=True)]
            names = {name for name, ok in zip(op.names, fits, strict=True) if ok}
            names -= {name for name, ok in zip(op.names, fits, strict=True) if not ok}
            for chosen in chain.from_iterable(combinations(sorted(names), n) for n in range(len(names) + 1)):
                inside = {p for p, name in zip(positions, op.names, strict=True) if name in chosen}
                sides = tuple(position in inside for position in range(len(self.problem.ops[at].sides)))
                options.append((shown, frozenset(chosen), [(slices, sides) for slices in same]))
        costs, mine = self.problem.costs, self.problem.ops[at]
        costs.times(mine, [each for _, _, choices in options for each in choices])  # all at once
        for shown, held, choices in options:
            ranked = zip(costs.times(mine, choices), choices, strict=True)
            time, (slices, _) = min(ranked, key=lambda each: (each[0], each[1][0] != self.given[op.at]))
            yield _Choice(shown, held, slices, int(time * self.problem.turns[at] * PICOSECONDS))

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
            self.model.add_at_most_one(place.chosen for place in places)

    def _divide_alike(self, op: _Op, other: _Op) -> None:
        mine, theirs = (_by(each.choices, lambda choice: choice.shown) for each in (op, other))
        for shown in mine:
            self.model.add(sum(mine[shown]) == sum(theirs[shown]))

    def _agree(self) -> None:
        """A buffer is in LX for all of its users or for none, and has for each what that takes part of."""
        for op in self.ops.values():
            for side, (name, (_, position)) in enumerate(zip(op.names, self.shared[op.at], strict=True)):
                user, places = (self._first(op.at), position), self.places[name]
                holding = _by(op.holding(side), lambda choice, side=side: choice.shown[side])
                self.model.add(sum(chain.from_iterable(holding.values())) == sum(place.chosen for place in places))
                for part, chosen in holding.items():
                    self.model.add(sum(chosen) <= sum(place.chosen for place in places if part in place.agreed[user]))
                for place in places:
                    mine = chain.from_iterable(holding.get(part, ()) for part in place.agreed[user])
                    self.model.add(place.chosen <= sum(mine))

    def _limit_room(self) -> None:
        alive: list[Counter[str]] = [Counter() for _ in self.problem.ops]
        for name, span in self.problem.spans.items():
            for at in span:
                alive[at][self.alike[name]] += 1
        for together in {frozenset(each.items()) for each in alive}:
            largest = {name: max((place.there.bytes for place in self.places[name]), default=0) for name, _ in together}
            if sum(count * largest[name] for name, count in together) > self.problem.budget:
                taken = [
                    count * place.there.bytes * place.chosen for name, count in together for place in self.places[name]
                ]
                self.model.add(sum(taken) <= self.problem.budget)

    def _minimize(self) -> None:
        total = sum(op.count * choice.picoseconds * choice.chosen for op in self.ops.values() for choice in op.choices)
        for name, count in Counter(self.alike[name] for name in self.problem.clones).items():
            for place in self.places[name]:
                copying = self.problem.copying_us(name, Stay(place.there), _always((place.cores,)))
                total += count * int(copying * PICOSECONDS) * place.chosen
        self.model.minimize(total)

    def _begin_with(self, stays: Mapping[str, Stay]) -> None:
        """The solution that is known: what differs between layers is taken as in the first."""
        for op in self.ops.values():
            shown = self._shown(op.at, self.given[op.at])
            held = {self.alike[name] for name, _ in self.shared[op.at] if name in stays and not stays[name].moves}
            for choice in op.choices:
                self.model.add_hint(choice.chosen, choice.shown == shown and choice.held == held)

    def solved(self) -> tuple[list[Slices], Proof]:
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
        bound = max(solver.best_objective_bound, 0) / PICOSECONDS
        limits = [*([] if self.all_divisions else ["candidates"]), *(["layers alike"] if self.layers[1] else [])]
        return found, Proof(solver.status_name(status).lower(), bound, ", ".join([*limits, "without the ring"]))


def _always(slices: Slices) -> Callable[[int], Slices]:
    return lambda _: slices


def _by(choices: Any, key: Any) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for choice in choices:
        found[key(choice)].append(choice.chosen)
    return found
