"""What a planner chooses from: how each op can be divided, what its cores then have of each buffer, what that costs.

Nothing here decides: :mod:`plan_together` does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, combinations, groupby
from math import prod

from ...backend.tiling import resident_budget
from ...card import description
from ...ops.table import OPS
from .clone_inputs import own_part, read_again, saved_us
from .cost import TIMED, Costs
from .divisions import Slices, divisions
from .plan import STICK_BYTES, Plan
from .regions import Part, Residence, lies_still, part_of, residence
from .uses import Use, last_turn, takes_the_place_of, uses_of

CANDIDATES = 12  # of one op, the fastest by themselves


class Problem:
    """The ops of a plan; ``fixed`` ones (by id) keep the division that they have."""

    def __init__(self, plan: Plan, fixed: set[int], costs: Costs) -> None:
        self.plan = plan
        self.ops = plan.device_ops
        self.costs = costs
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
        # Equal for ops of which one can be planned as the other.
        self.keys = [(costs.signature(op), tuple(tuple(side.constant) for side in op.sides)) for op in self.ops]
        self.spans = {name: self._span(name, shown) for name, shown in self.uses.items()}
        self._parts: dict[object, Part] = {}
        self._options: dict[object, list[Slices]] = {}

    def _span(self, name: str, shown: list[Use]) -> range:
        """The ops during which it takes room of its own: what is written in its place comes in at its last one."""
        first, last = shown[0].at, last_turn(self.plan, shown[0].at, shown[-1].at)
        successor = self.ops[last]
        gives = last > first and successor.op.out.buffer in self.uses and successor.op.out.buffer != name
        gives = gives and takes_the_place_of(self.plan, successor, name)
        return range(first, last if gives else last + 1)

    def part(self, at: int, position: int, slices: Slices) -> Part:
        """What the cores have of one side of an op."""
        key = (self.keys[at], position, slices)
        found = self._parts.get(key)
        if found is None:
            op = self.ops[at]
            elements = self.plan.elements(op.accesses()[position].buffer)
            found = self._parts[key] = part_of(op, op.sides[position], elements, slices)
        return found

    def folds_together(self, at: int, slices: Slices) -> bool:
        """Whether cores share a sum."""
        reduced = self.ops[at].reduced
        return reduced > 0 and any(cores > 1 for cores in slices[-reduced:])

    def candidates(self, at: int) -> list[Slices]:
        """The fastest divisions of an op by itself."""
        key = self.keys[at]
        found = self._options.get(key)
        if found is None:
            op = self.ops[at]
            held = (False,) * len(op.sides)
            splits = list(divisions(self.plan, op))
            times = self.costs.times(op, [(slices, held) for slices in splits])
            ranked = sorted(zip(times, splits, strict=True))
            found = self._options[key] = [slices for _, slices in ranked[:CANDIDATES]]
        return found

    def aligned(self, at: int, position: int, part: Part) -> Slices | None:
        """A division of the op under which its cores have those parts of an operand."""
        key = (self.keys[at], position, part.apart)
        if key not in self._options:
            op = self.ops[at]
            side = op.sides[position]
            self._options[key] = [
                slices
                for slices in divisions(self.plan, op, len(part.apart), side)
                if self.part(at, position, slices).apart == part.apart
            ][:1]
        found = self._options[key]
        return found[0] if found else None

    def residence(self, name: str, divided: Callable[[int], Slices]) -> Residence | None:
        """Where a buffer can stay in LX if its users are divided so."""
        written: list[Part] = []
        read: list[Part] = []
        for use in self.uses[name]:
            mine = divided(use.at)
            if self.folds_together(use.at, mine):
                return None
            (written if use.writes else read).append(self.part(use.at, use.position, mine))
        return self.place(name, written, read)

    def place(self, name: str, written: list[Part], read: list[Part]) -> Residence | None:
        """Where a buffer can stay in LX if its cores have these parts of it; no reader changes where that is."""
        if name in self.clones:
            readers = len({use.at for use in self.uses[name]})
            worth_it = own_part(read) and saved_us(read[0], readers) > 0
            found = Residence(read[0].origin, read[0].size) if worth_it else None
        else:
            found = residence(written, read)
        return found if found and found.bytes <= self.budget else None

    def cloning_us(self, name: str, there: Residence | None, divided: Callable[[int], Slices]) -> float:
        """Microseconds that the copy of an argument to LX takes."""
        if there is None:
            return 0
        card, first = description.constants(), self.uses[name][0].at
        read = there.bytes * prod(divided(first)) / card["dram_gb_per_s"] / 1000
        return self.turns[first] * (read + card["step_fixed_us"])

    def time(self, at: int, slices: Slices, held: tuple[bool, ...]) -> float:
        """Microseconds of an op in all its turns; ``held``: which of its sides are in LX."""
        return self.turns[at] * self.costs.time(self.ops[at], slices, held)

    def bound(self, slices: Sequence[Slices]) -> float:
        """No plan of these ops in these layouts is faster: each in its best division, with all that it could share and
        that fits in LX. ``slices``: of the fixed ones."""
        total = 0.0
        for at, op in enumerate(self.ops):
            choices = [slices[at]] if at in self.fixed else list(divisions(self.plan, op, any_number=True))
            held = [(mine, held) for mine in choices for held in self.holdable(at, mine)]
            total += self.turns[at] * min(self.costs.times(op, held))
        return total

    def holdable(self, at: int, slices: Slices) -> list[tuple[bool, ...]]:
        """Which sides of an op can be in LX together: parts of which no two cores have the same, as large as LX."""
        op = self.ops[at]
        sizes: dict[int, int] = {}
        for name, position in self.shared[at] if not self.folds_together(at, slices) else ():
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


def repeated(keys: Sequence[object], fewest: float = 4) -> tuple[int, int, int]:
    """Where equal layers begin, how many ops one has, where they end; (0, 0, 0) if there are fewer than that."""
    places: dict[object, list[int]] = defaultdict(list)
    for at, key in enumerate(keys):
        places[key].append(at)
    steps = Counter(b - a for at in places.values() if len(at) >= fewest for a, b in zip(at, at[1:], strict=False))
    for period, _ in sorted(steps.items(), key=lambda each: -each[0] * each[1])[:8]:
        run = [at + period < len(keys) and keys[at] == keys[at + period] for at in range(len(keys))]
        begin, longest = 0, 0
        for same, group in groupby(range(len(keys)), key=run.__getitem__):
            inside = list(group)
            if same and len(inside) > longest:
                begin, longest = inside[0], len(inside)
        if longest >= (fewest - 1) * period:
            return begin, period, begin + longest + period
    return 0, 0, 0
