"""View lifting: from host strides to device coordinates.

Before: operands are affine accesses in host elements, and every buffer has a device layout. After: each op is one or
more pieces whose operands have affine *device* coordinates; loops were split where a view crosses a device dimension,
until neither div nor mod is left. Only the stick dimension stays one loop: its two coordinates are c // E and c % E.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from ..errors import Unsupported
from .coordinates import Coordinates, Level, Operand, Piece


class NotAligned(Exception):
    """The stick loop does not run along whole sticks here."""


@dataclass
class _Loop:
    count: int
    origin: int
    rest: list[int]  # per operand: host stride not yet placed
    steps: list[dict[int, int]]  # per operand: device dimension -> step
    inner: bool = True  # what is left of the op's own loop after splits

    def split(self, period: int) -> tuple[_Loop, _Loop]:
        outer = _Loop(
            self.count // period,
            self.origin,
            [r * period for r in self.rest],
            [{d: s * period for d, s in steps.items()} for steps in self.steps],
            inner=False,
        )
        inner = _Loop(period, self.origin, list(self.rest), [dict(steps) for steps in self.steps], self.inner)
        return outer, inner

    def cut(self, count: int) -> _Loop:
        return _Loop(count, self.origin, list(self.rest), [dict(steps) for steps in self.steps], self.inner)


@dataclass
class _State:
    loops: list[_Loop]
    rest: list[int]
    constants: list[dict[int, int]]
    operand: int = 0
    level: int = 0

    def cut(self, which: int, at: int) -> tuple[_State, _State]:
        """[0, at) and [at, count) of one loop."""

        def part(count: int, start: int) -> _State:
            loops = [loop.cut(count if i == which else loop.count) for i, loop in enumerate(self.loops)]
            moved = self.loops[which]
            constants = [dict(c) for c in self.constants]
            for constant, steps in zip(constants, moved.steps, strict=True):
                for dim, step in steps.items():
                    constant[dim] = constant.get(dim, 0) + start * step
            rest = [r + start * m for r, m in zip(self.rest, moved.rest, strict=True)]
            return _State(loops, rest, constants, self.operand, self.level)

        count = self.loops[which].count
        return part(at, 0), part(count - at, at)


MOST_PIECES = 4096


class TooManyPieces(Unsupported):
    """The loops of a view and the dimensions of the card have hardly a common measure."""


class _Lifter:
    def __init__(self, operands: list[Operand], most: int) -> None:
        self.operands, self.most = operands, most
        self.todo: list[_State] = []
        self.pieces: list[Piece] = []

    def run(self, counts: tuple[int, ...]) -> list[Piece]:
        loops = [
            _Loop(n, i, [s.strides[i] for s in self.operands], [{} for _ in self.operands])
            for i, n in enumerate(counts)
            if n > 1
        ]
        self.todo = [_State(loops, [s.offset for s in self.operands], [{} for _ in self.operands])]
        while self.todo:
            state = self.todo.pop()
            if self._place_all(state):
                self.pieces.append(self._piece(state))
                if len(self.pieces) > self.most:
                    raise TooManyPieces(f"a view that falls into more than {self.most} pieces on the card")
        return self.pieces

    def _place_all(self, state: _State) -> bool:
        while state.operand < len(self.operands):
            levels = self.operands[state.operand].levels
            while state.level < len(levels):
                if not self._place(state, levels[state.level]):
                    return False
                state.level += 1
            state.operand, state.level = state.operand + 1, 0
        return True

    def _place(self, state: _State, level: Level) -> bool:
        operand, unit = state.operand, level.unit
        begin = state.rest[operand] % unit
        jumps = [self._left(stride, state) % unit * (extent - 1) for stride, extent in self.operands[operand].jumps]
        reaches = [(loop.count - 1) * (loop.rest[operand] % unit) for loop in state.loops]
        if begin + sum(reaches) + sum(jumps) < unit:
            self._place_affine(state, level)
            return True
        if not reaches or max(reaches) == 0:
            raise Unsupported("an index that moves across several device dimensions")
        widest = max(range(len(reaches)), key=reaches.__getitem__)
        others = sum(reaches) - reaches[widest] + sum(jumps)
        self._take_apart(state, widest, unit, unit - begin, others)
        return False

    def _left(self, stride: int, state: _State) -> int:
        """What the levels placed so far leave of a stride."""
        for level in self.operands[state.operand].levels[: state.level]:
            stride %= level.unit
        return stride

    def _place_affine(self, state: _State, level: Level) -> None:
        operand, unit = state.operand, level.unit
        first, state.rest[operand] = divmod(state.rest[operand], unit)
        if first:
            state.constants[operand][level.dim] = state.constants[operand].get(level.dim, 0) + first
        if level.stick and first % level.stick:
            raise NotAligned
        last = first
        for loop in state.loops:
            step, loop.rest[operand] = divmod(loop.rest[operand], unit)
            if not step:
                continue
            last += (loop.count - 1) * step
            loop.steps[operand][level.dim] = loop.steps[operand].get(level.dim, 0) + step
            if level.stick and step % level.stick and not (step == 1 and self._runs_along(operand, loop)):
                raise NotAligned
        if last >= level.extent:
            raise Unsupported(f"coordinate {last} of a device dimension of {level.extent}: the view leaves its tensor")

    def _runs_along(self, operand: int, loop: _Loop) -> bool:
        return loop.inner and loop.origin == self.operands[operand].stick_loop

    def _take_apart(self, state: _State, which: int, unit: int, room: int, others: int) -> None:
        """Loop ``which`` carries: ``room`` is what is left of the current unit, ``others`` how far the rest reaches."""
        loop = state.loops[which]
        step = loop.rest[state.operand] % unit
        period = unit // gcd(step, unit)
        to_next = -(-room // step)
        if loop.count > period:
            # Begin at the head of a unit: whole periods then carry nowhere if the step divides the unit.
            if unit - room >= step and to_next < loop.count:
                return self._cut(state, which, to_next)
            if loop.count % period:
                return self._cut(state, which, loop.count // period * period)
            state.loops[which : which + 1] = loop.split(period)
            self.todo.append(state)
            return None
        at = -(-(room - others) // step)
        if not 1 <= at < loop.count:
            at = to_next
        if not 1 <= at < loop.count:
            at = loop.count // 2
        return self._cut(state, which, at)

    def _cut(self, state: _State, which: int, at: int) -> None:
        for i, operand in enumerate(self.operands):
            if self._runs_along(i, state.loops[which]) and any(v.stick and at % v.stick for v in operand.levels):
                raise NotAligned
        head, tail = state.cut(which, at)
        self.todo += [tail, head]

    def _piece(self, state: _State) -> Piece:
        loops = [loop for loop in state.loops if loop.count > 1]
        operands = []
        for i, operand in enumerate(self.operands):
            if state.rest[i] or any(loop.rest[i] for loop in loops):
                if operand.levels or operand.rank:
                    raise Unsupported("a view between the elements that its layout holds")
                # A operand without a layout (the values of an iota): what is left is its affine value.
                operands.append(Coordinates([state.rest[i]], [[loop.rest[i]] for loop in loops]))
                continue
            operands.append(self._coordinates(operand, i, state, loops))
        return Piece([loop.count for loop in loops], [loop.origin for loop in loops], operands)

    def _coordinates(self, operand: Operand, i: int, state: _State, loops: list[_Loop]) -> Coordinates:
        rank = max(operand.rank, 1)
        pair = next((level for level in operand.levels if level.stick), None)
        constant = [state.constants[i].get(d, 0) for d in range(rank)]
        steps = [[loop.steps[i].get(d, 0) for d in range(rank)] for loop in loops]
        found = Coordinates(constant, steps)
        along = [n for n, loop in enumerate(loops) if pair and steps[n][pair.dim] and self._runs_along(i, loop)]
        for stride, extent in operand.jumps:
            if extent == 1:  # only checked
                if operand.still < 0:
                    raise Unsupported("an index of a dimension of one that the layout does not have")
                found.jumps.append((operand.still, 1, False))
                continue
            rest = stride
            for level in operand.levels:
                step, rest = divmod(rest, level.unit)
                if step:
                    if rest:
                        raise Unsupported("an index that moves along several device dimensions at once")
                    if level.stick and step % level.stick and (step != 1 or along):
                        raise NotAligned
                    found.jumps.append((level.dim, step, bool(level.stick)))
                    break
            else:
                raise Unsupported("an index that moves between the elements that its layout holds")
        if pair is None:
            return found
        # Everything but the stick loop moves whole sticks: that belongs to the tile dimension.
        found.elements, found.tile_dim, lane = pair.stick, pair.tile_dim, pair.dim
        found.stick = along[0] if along else -1
        for row in [constant, *(row for n, row in enumerate(steps) if n != found.stick)]:
            if row[lane] % pair.stick:
                raise NotAligned
            if row[lane]:
                row[pair.tile_dim], row[lane] = row[pair.tile_dim] + row[lane] // pair.stick, 0
        return found


def lift(counts: tuple[int, ...], operands: list[Operand], most: int = MOST_PIECES) -> list[Piece]:
    """The pieces of an iteration space. Raises NotAligned if a stick loop cannot stay whole along its sticks."""
    if any(n == 0 for n in counts):
        return []
    return _Lifter(operands, most).run(counts)
