"""Chains of ops whose values are too large for LX run in tiles, so that a tile's values stay there.

Before: softmax, attention or a norm and the product behind it make whole values, which go through device memory where
all cores together have no room for them. After: where the clock finds that faster, such ops have a tile loop around
them, and the values that only they use are as small as one tile. Every way that promises to fit is planned as it would
be, by itself, and timed: a chain that reads its weights again in every iteration may well be better left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

from ..._C import SpyreTensorLayout
from ...card import description
from ...card.lx_budget import resident_budget
from .. import config
from ..errors import Unsupported
from ..layout.device_ir import Plan, dense_layout
from ..layout.fold_order import fold_orders
from ..layout.insert_restickify import insert_restickify
from ..layout.lift_ops import lift_ops
from ..layout.lift_views import NotAligned
from ..layout.propagate_layouts import propagate_layouts
from ..loop_ir import Buffer, Kernel, LoopOp
from ..loop_ir.tile_loops import check_tiles, tile
from .chains import Chain, alike, chain_of, joins, kept, near, split_alike
from .cost import Costs
from .divide_work import divide_work
from .plan_scratchpad import plan_scratchpad
from .relayout import relayout_us
from .tile_products import tile_products

SCOPES = 1 << 21  # numbers of these loops: hints and columns have smaller ones
SIZES = 2  # that are tried of each way to tile: the largest tiles that seem to fit, and the next ones
MARGIN = 8  # ops of a chain before, between and behind those that have no room
NESTED = 4  # loops inside one another, at most
MOST_ITERATIONS = 1024  # at most: a program has each of them written out
WORTH = 0.97  # of the time of a chain; what tiles save has to be more than the estimate may be off


@dataclass(frozen=True)
class _Tiling:
    """Loops around a run of ops, the outermost first: a chain and the number of its tiles."""

    loops: tuple[tuple[Chain, int], ...]

    @property
    def iterations(self) -> int:
        return prod(count for _, count in self.loops)

    def within(self, first: int, last: int) -> _Tiling:
        return _Tiling(tuple((chain.within(first, last), count) for chain, count in self.loops))

    def moved(self, by: int) -> _Tiling:
        return _Tiling(tuple((chain.moved(by), count) for chain, count in self.loops))


def tile_chains(plan: Plan) -> Iterator[Plan]:
    """The kernel with tile loops around its chains, if there are any, and then the kernel as it is.

    Tiles change the ops that layouts follow from. Those that would change the order of a sum are refused later
    (:func:`keep_fold_orders`), and so are those that would cut sticks.
    """
    tiled = plan.copy()
    if resident_budget() > 0 and _Tiler(tiled.kernel, tiled).run():
        whole = plan.copy()
        tile_products(whole)
        propagate_layouts(whole)
        tiled.fold_orders = fold_orders(whole)
        yield tiled
    yield plan


class _Tiler:
    def __init__(self, kernel: Kernel, given: Plan) -> None:
        self.kernel = kernel
        self.given = given
        self.room = resident_budget() * given.cores
        self.seen: set[str] = set()  # large buffers, tiled or better left as they are
        self.chosen: dict[str, _Tiling | None] = {}  # by what a run of ops looks like: equal layers are tiled alike

    def run(self) -> bool:
        tiled = 0
        for at in range(len(self.kernel.ops)):
            seed = self._seed(at)
            if seed is None:
                continue
            tiling, refined = self._best(seed)
            if tiling is not None:
                tile_run(refined, tiling, SCOPES + NESTED * tiled)
                self.kernel.ops, self.kernel.buffers = refined.ops, refined.buffers
                tiled += 1
        return tiled > 0

    def _seed(self, at: int) -> int | None:
        """The op that makes the largest of what an op has no room for in LX, if that has not been looked at."""
        op = self.kernel.ops[at]
        if not joins(op) or _in_lx(self.kernel, op) <= self.room:
            return None
        inside = (a.buffer for a in op.accesses() if self.kernel.buffers[a.buffer].kind == "internal")
        large = max(inside, key=lambda name: _bytes(self.kernel, name))
        if large in self.seen:
            return None
        self.seen.add(large)
        return next((i for i, each in enumerate(self.kernel.ops) if each.out.buffer == large and joins(each)), None)

    def _best(self, seed: int) -> tuple[_Tiling | None, Kernel]:
        """The fastest way to tile the chains around an op, if one is worth it, and the kernel with loops to match."""
        refined = replace(self.kernel, buffers=dict(self.kernel.buffers), ops=list(self.kernel.ops))
        split_alike(refined, [at for at in near(refined, seed) if joins(refined.ops[at])])
        chains = self._chains(refined, seed)
        if not chains:
            return None, refined
        shortest = min(chains, key=lambda chain: len(chain.loops))
        self.seen |= {refined.ops[at].out.buffer for at in shortest.loops}
        first, last = min(chain.first for chain in chains), max(chain.last for chain in chains)
        part = refined.part(first, last)
        across = self._across(refined, shortest)
        key = repr((_anonymous(part, self.given), seed - first, across))
        if key not in self.chosen:
            whole = replace(part, ops=self.kernel.ops[first : last + 1])
            self.chosen[key] = self._fastest(whole, part, [chain.moved(-first) for chain in chains], across)
        best = self.chosen[key]
        if best is None:
            return None, refined
        best = best.moved(first)
        return best, replace(refined, ops=_split_inside(best, self.kernel.ops, refined.ops))

    def _across(self, kernel: Kernel, chain: Chain) -> int:
        """Bytes that may be in LX besides: what all iterations of a chain need, and what ops shortly before it make for
        ops shortly behind it."""
        first, last = near(kernel, chain.first).start, near(kernel, chain.last).stop
        made = {op.out.buffer for op in kernel.ops[first : chain.first]}
        made |= {kernel.ops[at].out.buffer for at in chain.before}
        found = made & {name for op in kernel.ops[chain.last + 1 : last] for name in op.reads()}
        own = {kernel.ops[at].out.buffer for at in chain.loops}
        for at, loop in chain.loops.items():
            found |= {each.buffer for each in kernel.ops[at].accesses() if not each.strides[loop]} - own
        sizes = [_bytes(kernel, name) for name in found if kernel.buffers[name].kind == "internal"]
        return sum(size for size in sizes if size <= self.room)

    def _chains(self, kernel: Kernel, seed: int) -> list[Chain]:
        """Along each dimension of what an op makes, the outermost first: those with most of the ops in need."""
        op = kernel.ops[seed]
        loops = [i for i in range(kept(op)) if op.sizes[i] > 1 and op.out.strides[i]]
        found = [chain_of(kernel, seed, loop) for loop in sorted(loops, key=lambda i: -op.out.strides[i])]
        large = [(self._large(kernel, chain), chain) for chain in found if chain is not None]
        most = max((len(ops) for ops, _ in large), default=0)
        return [_around(chain, seed, ops) for ops, chain in large if 2 * len(ops) > most]

    def _large(self, kernel: Kernel, chain: Chain) -> list[int]:
        """Ops that have no room in LX for what they show."""
        return [at for at in sorted(chain.loops) if _in_lx(kernel, kernel.ops[at]) > self.room]

    def _fastest(self, whole: Kernel, part: Kernel, chains: list[Chain], across: int) -> _Tiling | None:
        """Of the ways that seem to fit, each in the largest tiles and, where these help, in smaller ones."""
        limit = time = WORTH * self._time(whole, whole, None)
        best = None
        for tilings in self._tilings(part, chains, across):
            for tiling in tilings:
                now = self._time(whole, part, tiling) if self._least(part, tiling) < time else limit
                if now < time:
                    time, best = now, tiling
                if now >= limit:
                    break
        if best is not None:
            large = self._large(part, best.loops[0][0])
            shorter = best.within(large[0], large[-1]) if len(large) > 1 else best
            if shorter != best and self._time(whole, part, shorter) < time:
                best = shorter
        return best

    def _tilings(self, kernel: Kernel, chains: list[Chain], across: int) -> Iterator[list[_Tiling]]:
        """One dimension in tiles; where not even single rows of it are small enough, the next one inside it too."""
        outer: list[Chain] = []
        for chain in chains:
            yield self._in(kernel, [chain], across)
            if outer and (nested := self._in(kernel, [*outer, chain], across)):
                yield nested
                outer = []
            elif len(outer) < NESTED - 1 and not self._in(kernel, [chain], across):
                outer = [*outer, chain]

    def _in(self, kernel: Kernel, chains: list[Chain], across: int) -> list[_Tiling]:
        """The largest tiles along the last chain, in single rows of the others, that seem to fit."""
        together = alike(kernel, chains)
        if together is None:
            return []
        loops = [(each, _rows(kernel, each)) for each in together]
        tilings = (_Tiling((*loops[:-1], (together[-1], n))) for n in _divisors(loops[-1][1]))
        return [each for each in tilings if each.iterations <= MOST_ITERATIONS and self._fits(kernel, each, across)][
            :SIZES
        ]

    def _least(self, kernel: Kernel, tiling: _Tiling) -> float:
        """Microseconds that these tiles cost at least: their iterations, and the arguments that each reads again."""
        again: dict[str, int] = {}
        for at in tiling.loops[0][0].loops:
            op = kernel.ops[at]
            for access in op.accesses():
                still = not any(access.strides[chain.loops[at]] for chain, _ in tiling.loops)
                if still and access.buffer in self.given.layouts:
                    points = prod(n for n, stride in zip(op.sizes, access.strides, strict=True) if stride)
                    again[access.buffer] = points * kernel.buffers[access.buffer].dtype.itemsize
        card = description.constants()
        iteration = card["turn_fixed_us"] + sum(again.values()) / card["dram_gb_per_s"] / 1000
        return float((tiling.iterations - 1) * iteration)

    def _fits(self, kernel: Kernel, tiling: _Tiling, across: int) -> bool:
        """Whether at every op there is room for what its tile makes and reads, as far as that is the chain's own, next
        to what may be kept in LX from before the chain to behind it."""
        inside = tiling.loops[0][0].loops
        own = _own(kernel, set(inside))
        room = max(self.room - across, self.room // 4) * tiling.iterations
        return all(_in_lx(kernel, kernel.ops[at], own) <= room for at in inside)

    def _time(self, whole: Kernel, part: Kernel, tiling: _Tiling | None) -> float:
        """Microseconds of a part of the kernel, planned by itself; infinite where it cannot be tiled so."""
        kernel = Kernel(whole.name, dict(whole.buffers), list(whole.ops))
        try:
            if tiling is not None:
                kernel.ops = _split_inside(tiling, whole.ops, part.ops)
                tile_run(kernel, tiling, SCOPES)
            return _microseconds(kernel, self.given)
        except (Unsupported, NotAligned):
            return float("inf")


def tile_run(kernel: Kernel, tiling: _Tiling, scope: int) -> None:
    """Puts the loops of a tiling around its ops. Raises Unsupported where what one tile makes another would read."""
    chains = [chain for chain, _ in tiling.loops]
    inside, before = sorted(chains[0].loops), sorted(chains[0].before)
    names = [f"{number}" for number in range(len(chains))]
    tiles = tuple(
        (scope + i, name, count) for i, (name, (_, count)) in enumerate(zip(names, tiling.loops, strict=True))
    )
    ops = []
    for at in inside:
        of_loop = {chain.loops[at]: name for chain, name in zip(chains, names, strict=True)}
        ops.append(replace(kernel.ops[at], names=tuple(of_loop.get(i, "") for i in range(len(kernel.ops[at].sizes)))))
    first, last = inside[0], inside[-1]
    kernel.ops[first : last + 1] = [*(kernel.ops[at] for at in before), *ops]
    positions = list(range(first + len(before), last + 1))
    for _, name, count in tiles:
        check_tiles(kernel, positions, name, count)
    for at in positions:
        _cut_buffer(kernel, kernel.ops[at])
    tile(kernel, tiles, positions)


def _split_inside(tiling: _Tiling, whole: list[LoopOp], split: list[LoopOp]) -> list[LoopOp]:
    """The ops of a tiling with their loops split, all others as they were."""
    inside = tiling.loops[0][0].loops
    return [split[at] if at in inside else whole[at] for at in range(len(whole))]


def _cut_buffer(kernel: Kernel, op: LoopOp) -> None:
    """What an op makes gets a dimension for every loop that will be tiled."""
    buffer = kernel.buffers[op.out.buffer]
    if buffer.kind != "internal" or buffer.order is not None:
        return
    dims = list(zip(buffer.size, buffer.stride, strict=True))
    for name, n, stride in zip(op.names, op.sizes, op.out.strides, strict=True):
        for unit in (stride, stride * n) if name and n > 1 else ():
            dims = [part for dim in dims for part in _cut(*dim, unit)]
    size, strides = zip(*dims, strict=True) if dims else ((), ())
    kernel.buffers[buffer.name] = replace(buffer, size=size, stride=strides)


def _cut(n: int, stride: int, unit: int) -> list[tuple[int, int]]:
    inner = unit // stride if stride > 0 else 0
    if inner * stride == unit and 1 < inner < n and n % inner == 0:
        return [(n // inner, unit), (inner, stride)]
    return [(n, stride)]


def _microseconds(kernel: Kernel, given: Plan) -> float:
    layouts = {name: _layout(buffer, given) for name, buffer in kernel.buffers.items() if buffer.kind == "input"}
    plan = given.of(kernel, layouts)
    tile_products(plan)
    propagate_layouts(plan)
    insert_restickify(plan)
    lift_ops(plan)
    with config.patch(plan_bound=False):
        divide_work(plan)
    plan_scratchpad(plan)
    costs = Costs(plan)
    total = 0.0
    for op in plan.device_ops:
        in_lx = tuple(access.buffer in plan.lx for access in op.accesses())
        time = relayout_us(plan, op) if op.across else costs.time(op, op.slices, in_lx)
        total += prod(count for _, count in op.loop_op.tile_loops) * time
    card = description.constants()
    for loops, _ in groupby(plan.device_ops, key=lambda op: op.loop_op.tile_loops):
        total += (prod(count for _, count in loops) - 1) * card["turn_fixed_us"]
    return total


def _layout(buffer: Buffer, given: Plan) -> SpyreTensorLayout:
    return given.layouts.get(buffer.name) or dense_layout(buffer)


def _anonymous(kernel: Kernel, given: Plan) -> object:
    """Equal for parts that are equal but for the names of their buffers."""
    number = {name: i for i, name in enumerate(kernel.buffers)}
    buffers = [(*list(vars(b).values())[1:], str(given.layouts.get(b.name))) for b in kernel.buffers.values()]

    def operand(each: object) -> object:
        fields = vars(each)
        return [number.get(value, value) if key == "buffer" else value for key, value in fields.items()]

    ops = [(op.name, op.sizes, operand(op.out), [*map(operand, op.ins)], op.reduced, op.hints) for op in kernel.ops]
    return buffers, ops


def _around(chain: Chain, seed: int, large: list[int]) -> Chain:
    """The part of a chain whose ops have one in need, or the seed, close by."""
    inside = sorted(chain.loops)
    wanted = {at for at, each in enumerate(inside) if each in large or each == seed}
    first = last = inside.index(seed)
    while wanted & set(range(first - MARGIN, first)):
        first = min(wanted & set(range(first - MARGIN, first)))
    while wanted & set(range(last + 1, last + MARGIN + 1)):
        last = max(wanted & set(range(last + 1, last + MARGIN + 1)))
    return chain.within(inside[max(first - MARGIN, 0)], inside[min(last + MARGIN, len(inside) - 1)])


def _rows(kernel: Kernel, chain: Chain) -> int:
    return kernel.ops[chain.first].sizes[chain.loops[chain.first]]


def _divisors(n: int) -> list[int]:
    return [each for each in range(2, min(n, MOST_ITERATIONS) + 1) if n % each == 0]


def _own(kernel: Kernel, inside: set[int]) -> set[str]:
    """Buffers that the ops make and nothing else shows."""
    outside = {n for at, op in enumerate(kernel.ops) if at not in inside for n in (op.out.buffer, *op.reads())}
    made = {kernel.ops[at].out.buffer for at in inside}
    return {name for name in made - outside if kernel.buffers[name].kind == "internal"}


def _in_lx(kernel: Kernel, op: LoopOp, among: set[str] | None = None) -> int:
    """Bytes inside the kernel that an op shows; a pointwise result takes the place of an operand as large as it."""
    names = {access.buffer for access in op.accesses() if kernel.buffers[access.buffer].kind == "internal"}
    sizes = {name: _bytes(kernel, name) for name in names if among is None or name in among}
    if op.row.is_pointwise and op.out.buffer in sizes:
        mine = sizes.pop(op.out.buffer)
        return max(mine, sum(sizes.values()))
    return sum(sizes.values())


def _bytes(kernel: Kernel, name: str) -> int:
    buffer = kernel.buffers[name]
    return prod(buffer.size) * max(buffer.dtype.itemsize, 2)
