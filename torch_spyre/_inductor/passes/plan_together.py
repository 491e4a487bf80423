"""Work division and residence in LX, decided together: what the clock says about the whole kernel goes down.

Before: every op is divided as is best for itself. After: neighbours are divided alike where keeping what they share in
LX is worth more than the best division of each. The search goes by regions: one op is divided in another way, what can
follow through the buffers it shares follows, and the region keeps it if the kernel gets faster; then single ops may
go back. It ends when no region helps. Equal layers are searched once: what helps in the first two of them is tried in
the others. The bound it reports leaves every op its best division with all it could ever find in LX, so no plan of
these ops in these layouts is faster.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, groupby
from math import prod

from ...backend.tiling import resident_budget
from ...card import description
from ...ops.table import OPS
from .. import config
from .clone_inputs import own_part, read_again, saved_us
from .cost import TIMED, Costs
from .lift_views import Coordinates
from .plan import STICK_BYTES, DeviceOp, Plan, ceil_div
from .regions import Part, Residence, lies_still, part_of, points_of, residence
from .shares import byte_strides, jumped, quantum_of, reach_of, share
from .uses import Use, last_turn, takes_the_place_of, uses_of

Slices = tuple[int, ...]
CANDIDATES = 12  # of one op, the fastest by themselves
GAIN = 0.05  # microseconds that a change has to save
SEED = 2.0  # microseconds of an op that is worth beginning a region with
PASSES = 3


def plan_together(plan: Plan, fixed: set[int]) -> None:
    """Changes ``slices`` of the ops that are not ``fixed`` (by id); sets ``plan.bound_us`` if that is asked for."""
    search = _Search(plan, fixed)
    for _ in range(PASSES):
        if not search.improve():
            break
    for op, slices in zip(plan.device_ops, search.slices, strict=True):
        op.slices = list(slices)
    if config.plan_bound:
        plan.bound_us = search.bound()


@dataclass
class _Change:
    """Another division of some ops, and what follows from it."""

    slices: dict[int, Slices]
    resident: dict[str, Residence | None] = field(default_factory=dict)
    cost: dict[int, float] = field(default_factory=dict)
    saved: float = 0.0


class _Search:
    def __init__(self, plan: Plan, fixed: set[int]) -> None:
        self.plan = plan
        self.ops = plan.device_ops
        self.costs = Costs(plan)
        self.budget = resident_budget()
        self.uses = {
            name: shown
            for name, shown in uses_of(plan).items()
            if shown[0].writes
            and len(shown) > 1
            and not plan.placement(name).replicas
            and all(lies_still(self.ops[use.at].sides[use.position]) for use in shown)
        }
        self.clones = read_again(plan)  # arguments: to stay in LX they have to be copied there
        self.uses |= self.clones
        self.shared: dict[int, list[tuple[str, int]]] = defaultdict(list)  # by op: buffers that may stay, positions
        for name, shown in self.uses.items():
            for use in shown:
                self.shared[use.at].append((name, use.position))
        self.fixed = {
            at
            for at, op in enumerate(self.ops)
            if id(op) in fixed or OPS[op.op.name].kind not in TIMED or not self.shared[at]
        }
        self.turns = [prod(count for _, count in op.op.turns) for op in self.ops]
        self.slices: list[Slices] = [tuple(op.slices) for op in self.ops]
        self.parts: dict[object, Part] = {}
        self.options: dict[object, list[Slices]] = {}
        self.keys = [(self.costs.signature(op), tuple(tuple(side.constant) for side in op.sides)) for op in self.ops]
        self.resident: dict[str, Residence] = {}
        self.load = [0] * len(self.ops)
        self.spans = {name: self._span(name, shown) for name, shown in self.uses.items()}
        self.layers = repeated(self.keys)
        self.tried: dict[frozenset[tuple[int, Slices]], int] = {}  # regions that did not help, and when that was
        self.changes = 0
        self.changed = [0] * len(self.ops)  # by op: which change it has last been part of
        everything = self._evaluate({at: slices for at, slices in enumerate(self.slices)}, whole=True)
        self.cost = [everything.cost[at] for at in range(len(self.ops))]
        self._accept(everything)

    # --- what is known about ops and buffers

    def _span(self, name: str, shown: list[Use]) -> range:
        """The ops during which it takes room of its own: what is written in its place comes in at its last one."""
        first, last = shown[0].at, last_turn(self.plan, shown[0].at, shown[-1].at)
        successor = self.ops[last]
        gives = last > first and successor.op.out.buffer in self.uses and successor.op.out.buffer != name
        gives = gives and takes_the_place_of(self.plan, successor, name)
        return range(first, last if gives else last + 1)

    def part(self, at: int, position: int, slices: Slices) -> Part:
        key = (self.keys[at], position, slices)
        found = self.parts.get(key)
        if found is None:
            op = self.ops[at]
            elements = self.plan.elements(op.accesses()[position].buffer)
            found = self.parts[key] = part_of(op, op.sides[position], elements, slices)
        return found

    def _folds_together(self, at: int, slices: Slices) -> bool:
        reduced = self.ops[at].reduced
        return reduced > 0 and any(cores > 1 for cores in slices[-reduced:])

    def candidates(self, at: int) -> list[Slices]:
        """The fastest divisions of an op by itself."""
        key = self.keys[at]
        found = self.options.get(key)
        if found is None:
            op = self.ops[at]
            held = (False,) * len(op.sides)
            splits = list(divisions(self.plan, op))
            times = self.costs.times(op, [(slices, held) for slices in splits])
            ranked = sorted(zip(times, splits, strict=True))
            found = self.options[key] = [slices for _, slices in ranked[:CANDIDATES]]
        return found

    def aligned(self, at: int, position: int, part: Part) -> Slices | None:
        """A division of the op under which its cores have those parts of an operand."""
        key = (self.keys[at], position, part.apart)
        if key not in self.options:
            op = self.ops[at]
            side = op.sides[position]
            self.options[key] = [
                slices
                for slices in divisions(self.plan, op, len(part.apart), side)
                if self.part(at, position, slices).apart == part.apart
            ][:1]
        found = self.options[key]
        return found[0] if found else None

    # --- the effect of a change

    def _evaluate(self, slices: dict[int, Slices], whole: bool = False) -> _Change:
        change = _Change(slices)
        names = dict.fromkeys(name for at in slices for name, _ in self.shared[at])
        touched = set(slices)
        load: dict[int, int] = defaultdict(int)
        for name in names:
            if name in self.resident:
                self._add_load(load, name, self.resident[name], -1)
        wanted = [(name, self._residence(name, slices)) for name in names]
        for name, there in sorted(wanted, key=lambda each: each[1].bytes if each[1] else 0):
            if there is not None and not self._fits(load, name, there):
                there = None
            if there is not None:
                self._add_load(load, name, there, 1)
            if whole or (there is None) != (name not in self.resident):
                touched.update(use.at for use in self.uses[name])
            change.resident[name] = there
            if name in self.clones:
                change.saved += self._copied(name, self.resident.get(name)) - self._copied(name, there)
        for at in touched:
            mine = slices.get(at, self.slices[at])
            held = self._held(at, change.resident)
            change.cost[at] = self.turns[at] * self.costs.time(self.ops[at], mine, held)
        if not whole:
            change.saved += sum(self.cost[at] - time for at, time in change.cost.items())
        return change

    def _residence(self, name: str, slices: Mapping[int, Slices]) -> Residence | None:
        written: list[Part] = []
        read: list[Part] = []
        shown = self.uses[name]
        for use in shown:
            mine = slices.get(use.at, self.slices[use.at])
            if self._folds_together(use.at, mine):
                return None
            (written if use.writes else read).append(self.part(use.at, use.position, mine))
        if name in self.clones:
            worth_it = own_part(read) and saved_us(read[0], len({use.at for use in shown})) > 0
            found = Residence(read[0].origin, read[0].size) if worth_it else None
        else:
            found = residence(written, read)
        return found if found and found.bytes <= self.budget else None

    def _copied(self, name: str, there: Residence | None) -> float:
        """Microseconds that the copy of an argument to LX takes."""
        if there is None:
            return 0
        card, first = description.constants(), self.uses[name][0].at
        read = there.bytes * prod(self.slices[first]) / card["dram_gb_per_s"] / 1000
        return self.turns[first] * (read + card["step_fixed_us"])

    def _held(self, at: int, changed: Mapping[str, Residence | None]) -> tuple[bool, ...]:
        held = [False] * len(self.ops[at].sides)
        for name, position in self.shared[at]:
            there = changed[name] if name in changed else self.resident.get(name)
            held[position] = there is not None
        return tuple(held)

    def _add_load(self, load: dict[int, int], name: str, there: Residence, sign: int) -> None:
        for at in self.spans[name]:
            load[at] += sign * there.bytes

    def _fits(self, load: Mapping[int, int], name: str, there: Residence) -> bool:
        return all(self.load[at] + load.get(at, 0) + there.bytes <= self.budget for at in self.spans[name])

    def _accept(self, change: _Change) -> None:
        for at, slices in change.slices.items():
            self.slices[at] = slices
        for name, there in change.resident.items():
            if name in self.resident:
                self._add_own_load(name, self.resident.pop(name), -1)
            if there is not None:
                self.resident[name] = there
                self._add_own_load(name, there, 1)
        self.changes += 1
        for at, time in change.cost.items():
            self.cost[at] = time
            self.changed[at] = self.changes

    def _add_own_load(self, name: str, there: Residence, sign: int) -> None:
        for at in self.spans[name]:
            self.load[at] += sign * there.bytes

    # --- the search

    def improve(self) -> bool:
        """One pass over all ops, the most expensive first."""
        better = False
        begin, period, end = self.layers
        seeds = [at for at in range(len(self.ops)) if not begin + 2 * period <= at < end - period]
        for at in sorted(seeds, key=lambda each: -self.cost[each]):
            if at in self.fixed or self.cost[at] < SEED:
                continue
            for slices in self.candidates(at):
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
        """The seed and what can follow it, one after the other."""
        found, queue = {seed: slices}, [seed]
        while queue:
            at = queue.pop(0)
            if at != seed and not through_products and self.ops[at].op.name == "matmul":
                continue
            for name, position in self.shared[at]:
                if self._folds_together(at, found[at]):
                    continue
                part = self.part(at, position, found[at])
                for use in self.uses[name]:
                    if use.at in found or use.at in self.fixed:
                        continue
                    theirs = self.aligned(use.at, use.position, part)
                    if theirs is not None:
                        found[use.at] = theirs
                        queue.append(use.at)
        return {at: mine for at, mine in found.items() if mine != self.slices[at]}

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

    def bound(self) -> float:
        """No plan of these ops in these layouts is faster: each in its best division, with all that it could share and
        that fits in LX."""
        total = 0.0
        for at, op in enumerate(self.ops):
            choices = [self.slices[at]] if at in self.fixed else list(divisions(self.plan, op, any_number=True))
            held = [(slices, held) for slices in choices for held in self._holdable(at, slices)]
            total += self.turns[at] * min(self.costs.times(op, held))
        return total

    def _holdable(self, at: int, slices: Slices) -> list[tuple[bool, ...]]:
        """Which sides of an op can be in LX together: parts of which no two cores have the same, as large as LX."""
        op = self.ops[at]
        sizes: dict[int, int] = {}
        for name, position in self.shared[at] if not self._folds_together(at, slices) else ():
            part = self.part(at, position, slices)
            own = name in self.clones or len(set(part.apart)) == len(part.apart)
            if own and STICK_BYTES * prod(part.size[:-1]) <= self.budget:
                sizes[position] = STICK_BYTES * prod(part.size[:-1])
        in_place = OPS[op.op.name].kind == "pointwise"  # a result may take the place of an operand
        most: list[set[int]] = []
        for chosen in chain.from_iterable(combinations(sizes, n) for n in range(len(sizes), -1, -1)):
            taken = [sizes[position] for position in chosen]
            fits = (max(taken, default=0) if in_place else sum(taken)) <= self.budget
            if fits and not any(other.issuperset(chosen) for other in most):
                most.append(set(chosen))
        return [tuple(position in held for position in range(len(op.sides))) for held in most]


def repeated(keys: Sequence[object]) -> tuple[int, int, int]:
    """Where equal layers begin, how many ops one has, where they end; (0, 0, 0) if there are fewer than four."""
    places: dict[object, list[int]] = defaultdict(list)
    for at, key in enumerate(keys):
        places[key].append(at)
    steps = Counter(b - a for at in places.values() if len(at) > 3 for a, b in zip(at, at[1:], strict=False))
    for period, _ in sorted(steps.items(), key=lambda each: -each[0] * each[1])[:8]:
        run = [at + period < len(keys) and keys[at] == keys[at + period] for at in range(len(keys))]
        begin, longest = 0, 0
        for same, group in groupby(range(len(keys)), key=run.__getitem__):
            inside = list(group)
            if same and len(inside) > longest:
                begin, longest = inside[0], len(inside)
        if longest >= 3 * period:
            return begin, period, begin + longest + period
    return 0, 0, 0


def divisions(
    plan: Plan, op: DeviceOp, exactly: int = 0, moving: Coordinates | None = None, any_number: bool = False
) -> Iterator[Slices]:
    """Ways to share the loops of an op: no core without work, no stick written by two, none reaching over the span.

    ``exactly`` so many cores, over loops that move the side ``moving``; else ``any_number``, or as many as can be.
    """
    strides = byte_strides(plan, op)
    kept = len(op.counts) - op.reduced
    written = op.sides[-1]
    options: list[list[int]] = []
    for loop, count in enumerate(op.counts):
        quantum = quantum_of(op, loop, strides)
        may = bool(quantum) and (loop >= kept or any(written.steps[loop]) or written.stick == loop)
        if moving is not None:
            may = may and loop < kept and (any(moving.steps[loop]) or moving.stick == loop)
        units = ceil_div(count, quantum) if may else 1
        options.append(_shares(count, units, max(quantum, 1), plan.cores))
    found = list(_products(options, plan.cores))
    if exactly:
        found = [slices for slices in found if prod(slices) == exactly]
    elif not any_number:
        most = max(map(prod, found), default=1)
        found = [slices for slices in found if 2 * prod(slices) > most]
    for slices in found:
        if sum(cores > 1 for cores in slices[kept:]) <= 1 and within_span(plan, op, slices, strides):
            yield slices


def within_span(plan: Plan, op: DeviceOp, slices: Sequence[int], strides: list[list[int]] | None = None) -> bool:
    points = points_of(op, slices)
    rows = byte_strides(plan, op) if strides is None else strides
    return all(
        reach_of(points, row, side.stick, side.elements) + jumped(plan, op, access, side) <= plan.span
        for access, side, row in zip(op.accesses(), op.sides, rows, strict=True)
    )


def _shares(count: int, units: int, quantum: int, cores: int) -> list[int]:
    return sorted({share(count, units, quantum, wanted) for wanted in range(1, min(units, cores) + 1)} | {1})


def _products(options: list[list[int]], cores: int) -> Iterator[Slices]:
    if not options:
        yield ()
        return
    for mine in options[0]:
        if mine > cores:
            break
        for rest in _products(options[1:], cores // mine):
            yield (mine, *rest)
