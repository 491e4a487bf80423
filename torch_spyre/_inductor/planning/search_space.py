"""The search space of planning: how each op can be divided, which tiles its cores then have, and what that costs.

Nothing is decided here: :mod:`joint_search` and :mod:`cp_sat` search in it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, groupby, pairwise
from math import prod

from ...card import description
from ...card.description import STICK_BYTES
from ...card.lx_budget import resident_budget
from ..layout.device_ir import LxPlacement, Move, Plan
from .clone_inputs import own_tile, read_again, saved_us
from .core_tiles import CoreTile, core_tile, lies_still, lx_placement
from .cost import Costs
from .divisions import Slices, divisions
from .liveness import Use, last_needed, takes_the_place_of, uses_of
from .relayout import relayout, relayout_us

Apart = tuple[tuple[int, ...], ...]
CANDIDATES = 12  # of one op, the fastest by themselves


@dataclass(frozen=True)
class Stay:
    """How a buffer stays in LX: where its writers leave it, and where it moves to."""

    there: LxPlacement
    moves: tuple[Move, ...] = ()

    @property
    def moving_us(self) -> float:
        return sum(move.microseconds for move in self.moves)


class SearchSpace:
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
            and all(lies_still(self.ops[use.at].operands[use.position]) for use in shown)
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
            if id(op) in fixed or not op.loop_op.row.is_dense or not self.shared[at]
        }
        self.iterations = [prod(count for _, count in op.loop_op.tile_loops) for op in self.ops]
        for before, op in pairwise(self.ops):
            costs.comes_after(op, before)
        # Equal for ops of which one can be planned as the other.
        self.keys = [
            (costs.signature(op), tuple(tuple(operand.constant) for operand in op.operands)) for op in self.ops
        ]
        numbers: dict[object, int] = {}
        self.kinds = [numbers.setdefault(key, len(numbers)) for key in self.keys]  # the same, quicker to look up by
        self.spans = {name: self._span(name, shown) for name, shown in self.uses.items()}
        self._moves: dict[object, tuple[CoreTile, float] | None] = {}
        self._tiles: dict[tuple[int, int, Slices], CoreTile] = {}
        self._known_tiles: dict[CoreTile, CoreTile] = {}  # equal ones are one object
        # By the ids of tiles, which it keeps.
        self._lx_placements: dict[object, tuple[LxPlacement | None, tuple[CoreTile, ...]]] = {}
        self._candidates: dict[int, list[Slices]] = {}
        self._aligned: dict[tuple[int, int, int], dict[Apart, Slices]] = {}
        self._followers: dict[tuple[int, Slices], list[tuple[int, Slices]]] = {}
        self._stays: dict[object, Stay | None] = {}

    def _span(self, name: str, shown: list[Use]) -> range:
        """The ops during which it takes room of its own: what is written in its place comes in at its last one."""
        first, last = shown[0].at, last_needed(self.plan, shown[0].at, shown[-1].at)
        successor = self.ops[last]
        gives = last > first and successor.loop_op.out.buffer in self.uses and successor.loop_op.out.buffer != name
        gives = gives and takes_the_place_of(self.plan, successor, name)
        return range(first, last if gives else last + 1)

    def core_tile(self, at: int, position: int, slices: Slices) -> CoreTile:
        """What the cores have of one operand of an op."""
        key = (self.kinds[at], position, slices)
        found = self._tiles.get(key)
        if found is None:
            op = self.ops[at]
            elements = self.plan.elements(op.accesses()[position].buffer)
            made = core_tile(op, op.operands[position], elements, slices)
            found = self._tiles[key] = self._known_tiles.setdefault(made, made)
        return found

    def _lx_placement(self, written: Sequence[CoreTile], read: Sequence[CoreTile]) -> LxPlacement | None:
        """As :func:`lx_placement`: each question is asked many times, and tiles that are equal are mostly the same."""
        key = (*map(id, written), 0, *map(id, read))
        if key not in self._lx_placements:
            self._lx_placements[key] = lx_placement(written, read), (*written, *read)
        return self._lx_placements[key][0]

    def folds_together(self, at: int, slices: Slices) -> bool:
        """Whether cores share a sum."""
        reduced = self.ops[at].reduced
        return reduced > 0 and any(cores > 1 for cores in slices[-reduced:])

    def candidates(self, at: int) -> list[Slices]:
        """The fastest divisions of an op by itself."""
        found = self._candidates.get(self.kinds[at])
        if found is None:
            op = self.ops[at]
            in_lx = (False,) * len(op.operands)
            splits = list(divisions(self.plan, op))
            times = self.costs.times(op, [(slices, in_lx) for slices in splits])
            ranked = sorted(zip(times, splits, strict=True))
            found = self._candidates[self.kinds[at]] = [slices for _, slices in ranked[:CANDIDATES]]
        return found

    def aligned(self, at: int, position: int, tile: CoreTile) -> Slices | None:
        """A division of the op under which its cores have those tiles of an operand."""
        cores = len(tile.apart)
        key = (self.kinds[at], position, cores)
        found = self._aligned.get(key)
        if found is None:
            found = self._aligned[key] = {}
            for slices in divisions(self.plan, self.ops[at], cores, self.ops[at].operands[position]):
                found.setdefault(self.core_tile(at, position, slices).apart, slices)
        return found.get(tile.apart)

    def followers(self, at: int, slices: Slices) -> list[tuple[int, Slices]]:
        """Ops that can be divided so that they find what they share with this one in the same cores, and how."""
        key = (at, slices)
        found = self._followers.get(key)
        if found is None:
            found = self._followers[key] = []
            for name, position in self.shared[at] if not self.folds_together(at, slices) else ():
                tile = self.core_tile(at, position, slices)
                for use in self.uses[name]:
                    theirs = None if use.at in self.fixed else self.aligned(use.at, use.position, tile)
                    if theirs is not None:
                        found.append((use.at, theirs))
        return found

    def stay(self, name: str, divided: Callable[[int], Slices]) -> Stay | None:
        """How a buffer can stay in LX if its users are divided so."""
        key = (name, *(divided(use.at) for use in self.uses[name]))
        if key not in self._stays:
            self._stays[key] = self._stay(name, divided)
        return self._stays[key]

    def _stay(self, name: str, divided: Callable[[int], Slices]) -> Stay | None:
        written: list[CoreTile] = []
        read: list[CoreTile] = []
        for use in self.uses[name]:
            mine = divided(use.at)
            if self.folds_together(use.at, mine):
                return None
            (written if use.writes else read).append(self.core_tile(use.at, use.position, mine))
        there = self.place(name, written, read)
        if there is not None:
            return Stay(there)
        return self._moved(name, divided)

    def place(self, name: str, written: list[CoreTile], read: list[CoreTile]) -> LxPlacement | None:
        """Where a buffer can stay in LX if its cores have these tiles of it; no reader changes where that is."""
        if name in self.clones:
            readers = len({use.at for use in self.uses[name]})
            worth_it = own_tile(read) and saved_us(read[0], readers) > 0
            found = LxPlacement(read[0].origin, read[0].size) if worth_it else None
        else:
            found = self._lx_placement(written, read)
        return found if found and found.bytes <= self.budget else None

    def may_move(self, name: str) -> bool:
        """Whether its readers may have copies: one op writes it, and a copy serves the iteration that it is made in."""
        first, *readers = self.uses[name]
        loops = self.ops[first.at].loop_op.tile_loops
        inside = (not use.writes and self.ops[use.at].loop_op.tile_loops[: len(loops)] == loops for use in readers)
        return name not in self.clones and all(inside)

    def _moved(self, name: str, divided: Callable[[int], Slices]) -> Stay | None:
        """The same for a buffer that some of its readers want divided in another way than it is written."""
        if not self.may_move(name):
            return None
        first, *readers = self.uses[name]
        written = self.core_tile(first.at, first.position, divided(first.at))
        home = self._lx_placement([written], [])
        elsewhere: dict[Apart, list[Use]] = defaultdict(list)
        in_place: set[int] = set()
        for use in readers:
            tile = self.core_tile(use.at, use.position, divided(use.at))
            if self._lx_placement([written], [tile]):
                in_place.add(use.at)
            else:
                elsewhere[tile.apart].append(use)
        moves = []
        for wanting in elsewhere.values():
            move = self.move(first.at, wanting, divided)
            if move is None or in_place.intersection(move.readers):
                return None
            in_place.update(move.readers)
            moves.append(move)
        return Stay(home, tuple(moves)) if home and home.bytes <= self.budget else None

    def move(self, writer: int, wanting: list[Use], divided: Callable[[int], Slices]) -> Move | None:
        """One copy for ops that want the same division; they may want smaller tiles than the one it is made for."""
        tiles = [self.core_tile(use.at, use.position, divided(use.at)) for use in wanting]
        most = wanting[max(range(len(tiles)), key=lambda i: prod(tiles[i].size))]
        key = (self.kinds[writer], divided(writer), self.kinds[most.at], most.position, divided(most.at))
        if key not in self._moves:
            self._moves[key] = self._moving(writer, most, divided)
        found = self._moves[key]
        there = self._lx_placement([found[0]], tiles) if found else None
        if not found or not there or there.bytes > self.budget:
            return None
        readers = tuple(dict.fromkeys(use.at for use in wanting))
        source, before = self.ops[writer].loop_op.out.buffer, self.entry(writer, readers[0])
        return Move(source, before, readers, (most.at, most.position), there, self.iterations[writer] * found[1])

    def _moving(self, writer: int, use: Use, divided: Callable[[int], Slices]) -> tuple[CoreTile, float] | None:
        """What the ring brings if it can, and in how many microseconds."""
        source, target = (replace(self.ops[at], slices=list(divided(at))) for at in (writer, use.at))
        name = source.loop_op.out.buffer
        copy = relayout(self.plan, source, target, use.position, name, name)
        if copy is None:
            return None
        tile = core_tile(copy, copy.operands[-1], self.plan.elements(name), copy.slices)
        return tile, relayout_us(self.plan, copy)

    def entry(self, writer: int, reader: int) -> int:
        """The first op of the loops that only the reader is in: what is made in front of them serves all iterations."""
        depth = len(self.ops[writer].loop_op.tile_loops)
        loop = self.ops[reader].loop_op.tile_loops[: depth + 1]
        while len(loop) > depth and self.ops[reader - 1].loop_op.tile_loops[: depth + 1] == loop:
            reader -= 1
        return reader

    def rooms(self, name: str, stay: Stay) -> list[tuple[range, int]]:
        """During which ops it takes how much of LX."""
        if not stay.moves:
            return [(self.spans[name], stay.there.bytes)]
        first = self.uses[name][0].at
        moved = {at for move in stay.moves for at in move.readers}
        in_place = [last_needed(self.plan, first, use.at) for use in self.uses[name] if use.at not in moved]
        last = max(*in_place, *(move.before for move in stay.moves))
        own = [
            (range(move.before, last_needed(self.plan, first, move.readers[-1]) + 1), move.there.bytes)
            for move in stay.moves
        ]
        return [(range(first, last + 1), stay.there.bytes), *own]

    def copying_us(self, name: str, stay: Stay | None, divided: Callable[[int], Slices]) -> float:
        """Microseconds of the copies that a stay asks for: of an argument to LX, of a buffer over the ring."""
        if stay is None:
            return 0
        if name not in self.clones:
            return stay.moving_us
        card, first = description.constants(), self.uses[name][0].at
        read = stay.there.bytes * prod(divided(first)) / card["dram_gb_per_s"] / 1000
        return self.iterations[first] * (read + card["step_fixed_us"])

    def time(self, at: int, slices: Slices, in_lx: tuple[bool, ...]) -> float:
        """Microseconds of an op in all iterations of its tile loops; ``in_lx``: which of its operands are in LX."""
        return self.iterations[at] * self.costs.time(self.ops[at], slices, in_lx)

    def bound(self, slices: Sequence[Slices]) -> float:
        """No plan of these ops in these layouts is faster: each in its best division, with all that it could share and
        that fits in LX, none right behind the one that wrote what it reads. ``slices``: of the fixed ones."""
        total, costs = 0.0, Costs(self.plan)
        for at, op in enumerate(self.ops):
            choices = [slices[at]] if at in self.fixed else list(divisions(self.plan, op, any_number=True))
            in_lx = [(mine, in_lx) for mine in choices for in_lx in self.possible_in_lx(at, mine)]
            total += self.iterations[at] * min(costs.times(op, in_lx))
        return total

    def possible_in_lx(self, at: int, slices: Slices) -> list[tuple[bool, ...]]:
        """Which operands of an op can be in LX together: their tiles fit. Several cores may have the same tile of
        what is read, if it came over the ring."""
        op = self.ops[at]
        sizes: dict[int, int] = {}
        for _, position in self.shared[at] if not self.folds_together(at, slices) else ():
            tile = self.core_tile(at, position, slices)
            own = position < len(op.operands) - 1 or len(set(tile.apart)) == len(tile.apart)
            if own and STICK_BYTES * prod(tile.size[:-1]) <= self.budget:
                sizes[position] = STICK_BYTES * prod(tile.size[:-1])
        in_place = op.loop_op.row.is_pointwise  # a result may take the place of an operand
        most: list[set[int]] = []
        for chosen in chain.from_iterable(combinations(sizes, n) for n in range(len(sizes), -1, -1)):
            taken = [sizes[position] for position in chosen]
            fits = (max(taken, default=0) if in_place else sum(taken)) <= self.budget
            if fits and not any(other.issuperset(chosen) for other in most):
                most.append(set(chosen))
        return [tuple(position in in_lx for position in range(len(op.operands))) for in_lx in most]


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
