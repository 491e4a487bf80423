"""Joint search: work division and LX placement, decided together by the time of the whole kernel.

Before: every op is divided as is best for itself. After: neighbours are divided alike where keeping what they share in
LX is worth more than the best division of each. The search changes regions: one op is divided in another way, and so
are the ops that can follow it through shared buffers. The region stays so if the kernel gets faster, and single ops of
it may go back. The search ends when no region helps. Equal layers are searched once: what helps in the first two of
them is tried in the others. Plans that were found before come from disk (:mod:`plan_cache`), and the solver
(:mod:`cp_sat`) improves on the search where that is asked for. The bound that is reported gives every op its best
division and everything it could share in LX, so no plan of these ops in these layouts is faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from .. import config
from ..layout.device_ir import Plan
from .cost import Costs
from .cp_sat import solve
from .divisions import Slices
from .optimality import Optimality, report
from .plan_cache import PlanCache
from .search_space import SearchSpace, Stay, repeated

GAIN = 0.05  # microseconds that a change has to save
SEED = 2.0  # microseconds of an op that is worth beginning a region with
PASSES = 3


def joint_search(plan: Plan, fixed: set[int], costs: Costs) -> None:
    """Changes ``slices`` of the ops that are not ``fixed`` (by id), says in ``plan.planner`` how well; sets
    ``plan.bound_us`` if that is asked for."""
    begin = perf_counter()
    space = SearchSpace(plan, fixed, costs)
    search, optimality = _planned(space, [tuple(op.slices) for op in plan.device_ops])
    for op, slices in zip(plan.device_ops, search.slices, strict=True):
        op.slices = list(slices)
    plan.planned_us = search.total()
    plan.moves = [move for stay in search.resident.values() for move in stay.moves]
    if config.plan_bound:
        plan.bound_us = space.bound(search.slices)
    plan.planner = report(plan.planned_us, optimality, plan.bound_us, perf_counter() - begin)


def _planned(space: SearchSpace, start: list[Slices]) -> tuple[_Search, Optimality]:
    """The plan on disk, if there is one; else one that is searched for, starting from the plan of a layer on disk."""
    cache = PlanCache(space, start)
    known = cache.whole()
    if known is not None:
        return _Search(space, known[0]), known[1]
    search, settled = _Search(space, start), set[int]()
    layers = cache.layers()
    if layers is not None:
        again = _Search(space, layers[0])
        if again.total() <= search.total():
            search, settled = again, layers[1]
    for _ in range(PASSES):
        if not search.improve(settled):
            break
    optimality = Optimality()
    if config.solver == "exact":
        found, optimality = solve(space, search.slices, search.resident)
        search = min(search, _Search(space, found), key=_Search.total)
    cache.keep(search.slices, optimality)
    return search, optimality


@dataclass
class _Change:
    """Another division of some ops, and what follows from it."""

    slices: dict[int, Slices]
    resident: dict[str, Stay | None] = field(default_factory=dict)
    cost: dict[int, float] = field(default_factory=dict)
    saved: float = 0.0


class _Search:
    """The best divisions so far, and what stays in LX under them."""

    def __init__(self, space: SearchSpace, slices: Sequence[Slices]) -> None:
        self.space = space
        self.ops = space.ops
        self.slices = list(slices)
        self.resident: dict[str, Stay] = {}
        self.load = [0] * len(self.ops)
        self.layers = repeated(space.keys)
        self.tried: dict[frozenset[tuple[int, Slices]], int] = {}  # regions that did not help, and when that was
        self.reached: dict[tuple[int, Slices, bool], dict[int, Slices]] = {}  # what can follow a seed
        self.changes = 0
        self.changed = [0] * len(self.ops)  # by op: which change it has last been part of
        everything = self._evaluate({at: slices for at, slices in enumerate(self.slices)}, whole=True)
        self.cost = [everything.cost[at] for at in range(len(self.ops))]
        self._accept(everything)

    # --- the effect of a change

    def _evaluate(self, slices: dict[int, Slices], whole: bool = False) -> _Change:
        change = _Change(slices)
        names = dict.fromkeys(name for at in slices for name, _ in self.space.shared[at])
        touched = set(slices)
        load: dict[int, int] = defaultdict(int)
        for name in names:
            if name in self.resident:
                self._add_load(load, name, self.resident[name], -1)

        def divided(at: int) -> Slices:
            return slices.get(at, self.slices[at])

        wanted = [(name, self.space.stay(name, divided)) for name in names]
        for name, stay in sorted(wanted, key=_least_first):
            if stay is not None and not self._fits(load, name, stay):
                stay = None
            if stay is not None and stay.moves and not self._pays(name, stay, divided, change.resident):
                stay = None
            if stay is not None:
                self._add_load(load, name, stay, 1)
            if whole or (stay is None) != (name not in self.resident):
                touched.update(use.at for use in self.space.uses[name])
            change.resident[name] = stay
            before = self.space.copying_us(name, self.resident.get(name), self.slices.__getitem__)
            change.saved += before - self.space.copying_us(name, stay, divided)
        for at in touched:
            change.cost[at] = self.space.time(at, divided(at), self._in_lx(at, change.resident))
        if not whole:
            change.saved += sum(self.cost[at] - time for at, time in change.cost.items())
        return change

    def _pays(
        self, name: str, stay: Stay, divided: Callable[[int], Slices], changed: Mapping[str, Stay | None]
    ) -> bool:
        """Whether the way over the ring is shorter than that through device memory."""
        saved = 0.0
        for at in {use.at for use in self.space.uses[name]}:
            through, across = (self._in_lx(at, {**changed, name: there}) for there in (None, stay))
            saved += self.space.time(at, divided(at), through) - self.space.time(at, divided(at), across)
        return saved > stay.moving_us + GAIN

    def _in_lx(self, at: int, changed: Mapping[str, Stay | None]) -> tuple[bool, ...]:
        in_lx = [False] * len(self.ops[at].operands)
        for name, position in self.space.shared[at]:
            stay = changed[name] if name in changed else self.resident.get(name)
            in_lx[position] = stay is not None
        return tuple(in_lx)

    def _add_load(self, load: dict[int, int] | list[int], name: str, stay: Stay, sign: int) -> None:
        for span, size in self.space.rooms(name, stay):
            for at in span:
                load[at] += sign * size

    def _fits(self, load: Mapping[int, int], name: str, stay: Stay) -> bool:
        mine: dict[int, int] = defaultdict(int)
        self._add_load(mine, name, stay, 1)
        return all(self.load[at] + load.get(at, 0) + size <= self.space.budget for at, size in mine.items())

    def _accept(self, change: _Change) -> None:
        for at, slices in change.slices.items():
            self.slices[at] = slices
        for name, stay in change.resident.items():
            if name in self.resident:
                self._add_load(self.load, name, self.resident.pop(name), -1)
            if stay is not None:
                self.resident[name] = stay
                self._add_load(self.load, name, stay, 1)
        self.changes += 1
        for at, time in change.cost.items():
            self.cost[at] = time
            self.changed[at] = self.changes

    def total(self) -> float:
        """Microseconds of the kernel."""
        copies = (self.space.copying_us(name, stay, self.slices.__getitem__) for name, stay in self.resident.items())
        return sum(self.cost) + sum(copies)

    # --- the search

    def improve(self, settled: Container[int] = ()) -> bool:
        """One pass over all ops that are not ``settled``, the most expensive first."""
        better = False
        begin, period, end = self.layers
        seeds = [at for at in range(len(self.ops)) if not begin + 2 * period <= at < end - period and at not in settled]
        for at in sorted(seeds, key=lambda each: -self.cost[each]):
            if at in self.space.fixed or self.cost[at] < SEED:
                continue
            for slices in self.space.candidates(at):
                for through_products in (False, True):
                    region = self._region(at, slices, through_products)
                    key = frozenset(region.items())
                    if not region or self.tried.get(key, -1) >= max(self.changed[each] for each in region):
                        continue
                    self.tried[key] = self.changes
                    change = self._evaluate(region)
                    if change.saved > GAIN or self._polished(region, change):
                        change = self._settled(region)
                        self._accept(change)
                        self._repeat(change)
                        better = True
        return better

    def _repeat(self, change: _Change) -> None:
        """What helps in one layer helps in the next ones."""
        begin, period, end = self.layers
        inside = {at: slices for at, slices in change.slices.items() if begin <= at < begin + 2 * period}
        for far in range(period, end - begin, period) if inside else ():
            there = {at + far: slices for at, slices in inside.items() if at + far < end}
            if any(self.slices[at] != slices for at, slices in there.items()):
                again = self._evaluate(there)
                if again.saved > GAIN:
                    self._accept(again)

    def _region(self, seed: int, slices: Slices, through_products: bool) -> dict[int, Slices]:
        """What would have to be divided in another way if the seed were."""
        key = (seed, slices, through_products)
        if key not in self.reached:
            self.reached[key] = self._reach(*key)
        return {at: mine for at, mine in self.reached[key].items() if mine != self.slices[at]}

    def _reach(self, seed: int, slices: Slices, through_products: bool) -> dict[int, Slices]:
        """The seed and what can follow it, one after the other; where layers repeat, no farther than two of them."""
        found, queue = {seed: slices}, [seed]
        _, period, _ = self.layers
        while queue and (not period or len(found) < 2 * period):
            at = queue.pop(0)
            if at != seed and not through_products and self.ops[at].loop_op.row.is_product:
                continue
            for other, theirs in self.space.followers(at, found[at]):
                if other not in found:
                    found[other] = theirs
                    queue.append(other)
        return found

    def _polished(self, region: dict[int, Slices], change: _Change) -> bool:
        """Whether some ops of a region that does not pay spoil it: without the worst of them it does."""
        worse = [at for at in region if change.cost[at] > self.cost[at] + GAIN]
        if not worse or len(worse) == len(region):
            return False
        for at in worse:
            del region[at]
        return self._evaluate(region).saved > GAIN

    def _settled(self, region: dict[int, Slices]) -> _Change:
        """The region without the ops that do better as they were."""
        best = self._evaluate(region)
        for at in sorted(region, key=lambda each: self.cost[each] - best.cost[each]):
            if len(region) == 1 or best.cost[at] <= self.cost[at]:
                break
            less = {other: mine for other, mine in region.items() if other != at}
            tried = self._evaluate(less)
            if tried.saved > best.saved:
                region, best = less, tried
        return best


def _least_first(wanted: tuple[str, Stay | None]) -> tuple[bool, int]:
    """Those that need not move, then by what they take of LX."""
    _, stay = wanted
    return (False, 0) if stay is None else (bool(stay.moves), stay.there.bytes)
