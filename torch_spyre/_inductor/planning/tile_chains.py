"""Chains of ops whose values are too large for LX run in tiles, so that a tile's values stay there.

Before: softmax, attention or a norm and the product behind it make whole values, which go through device memory where
all cores together have no room for them. After: where the clock finds that faster, such ops have a tile loop around
them, and the values that only they use are as small as one tile.

The search goes through the ops. An op whose operands have no room in LX is a *seed*: the largest of what it uses is to
be made in tiles. The chains along each dimension of that value are candidates (``chains.py``), in numbers of tiles that
seem to fit (``_tilings``). Each is planned as it would be, by itself, and timed (``modelled_time.py``): a chain that
reads its weights again in every iteration may well be better left alone. The fastest gets its loops (``tiling.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import prod

from ...card import description
from ...card.lx_budget import resident_budget
from ..errors import Unsupported
from ..layout.device_ir import Plan
from ..layout.fold_order import fold_orders
from ..layout.lift_views import NotAligned
from ..layout.propagate_layouts import propagate_layouts
from ..loop_ir import Kernel, LoopOp
from .chains import Chain, alike, chain_of, joins, kept, near, split_alike
from .modelled_time import modelled_us
from .tile_products import tile_products
from .tiling import Tiling, add_tile_loops, split_inside

SCOPES = 1 << 21  # numbers of these loops: hints and columns have smaller ones
SIZES = 2  # that are tried of each way to tile: the largest tiles that seem to fit, and the next ones
MARGIN = 8  # ops of a chain before, between and behind those that have no room
NESTED = 4  # loops inside one another, at most
MOST_ITERATIONS = 1024  # at most: a program has each of them written out
WORTH = 0.97  # of the time of a chain; what tiles save has to be more than the estimate may be off


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
    """Puts tile loops into ``kernel``, whose arguments have the layouts of ``given``."""

    def __init__(self, kernel: Kernel, given: Plan) -> None:
        self.kernel = kernel
        self.given = given
        self.room = resident_budget() * given.cores
        self.seen: set[str] = set()  # large buffers, tiled or better left as they are
        self.chosen: dict[str, Tiling | None] = {}  # by what a run of ops looks like: equal layers are tiled alike

    def run(self) -> bool:
        """Whether some chain runs in tiles now."""
        tiled = 0
        for at in range(len(self.kernel.ops)):
            seed = self._seed(at)
            if seed is None:
                continue
            tiling, refined = self._best(seed)
            if tiling is not None:
                add_tile_loops(refined, tiling, SCOPES + NESTED * tiled)
                self.kernel.ops, self.kernel.buffers = refined.ops, refined.buffers
                tiled += 1
        return tiled > 0

    def _seed(self, at: int) -> int | None:
        """The op that makes the largest of what an op has no room for in LX, if that has not been looked at."""
        op = self.kernel.ops[at]
        if not joins(op) or _bytes_used(self.kernel, op) <= self.room:
            return None
        inside = (a.buffer for a in op.accesses() if self.kernel.buffers[a.buffer].kind == "internal")
        large = max(inside, key=lambda name: _bytes(self.kernel, name))
        if large in self.seen:
            return None
        self.seen.add(large)
        return next((i for i, each in enumerate(self.kernel.ops) if each.out.buffer == large and joins(each)), None)

    def _best(self, seed: int) -> tuple[Tiling | None, Kernel]:
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
        kept_across = self._kept_across(refined, shortest)
        key = repr((_anonymous(part, self.given), seed - first, kept_across))
        if key not in self.chosen:
            whole = replace(part, ops=self.kernel.ops[first : last + 1])
            self.chosen[key] = self._fastest(whole, part, [chain.moved(-first) for chain in chains], kept_across)
        best = self.chosen[key]
        if best is None:
            return None, refined
        best = best.moved(first)
        return best, replace(refined, ops=split_inside(best, self.kernel.ops, refined.ops))

    def _kept_across(self, kernel: Kernel, chain: Chain) -> int:
        """Bytes that may be in LX besides the tiles: what all iterations of a chain need, and what ops shortly before
        it make for ops shortly behind it."""
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
        """Ops whose operands have no room in LX."""
        return [at for at in sorted(chain.loops) if _bytes_used(kernel, kernel.ops[at]) > self.room]

    def _fastest(self, whole: Kernel, part: Kernel, chains: list[Chain], kept_across: int) -> Tiling | None:
        """The fastest of the ways that seem to fit, each in the largest tiles and, where these help, in smaller ones;
        None if none is worth it. ``part``: the ops with loops to match, ``whole``: as they were."""
        limit = time = WORTH * self._us(whole, whole, None)
        best = None
        for tilings in self._tilings(part, chains, kept_across):
            for tiling in tilings:
                now = self._us(whole, part, tiling) if self._least_us(part, tiling) < time else limit
                if now < time:
                    time, best = now, tiling
                if now >= limit:
                    break
        if best is not None:
            large = self._large(part, best.loops[0][0])
            shorter = best.within(large[0], large[-1]) if len(large) > 1 else best
            if shorter != best and self._us(whole, part, shorter) < time:
                best = shorter
        return best

    def _tilings(self, kernel: Kernel, chains: list[Chain], kept_across: int) -> Iterator[list[Tiling]]:
        """One dimension in tiles; where not even single rows of it are small enough, the next one inside it too."""
        outer: list[Chain] = []
        for chain in chains:
            alone = self._largest_tiles(kernel, [chain], kept_across)
            yield alone
            if outer and (nested := self._largest_tiles(kernel, [*outer, chain], kept_across)):
                yield nested
                outer = []
            elif len(outer) < NESTED - 1 and not alone:
                outer = [*outer, chain]

    def _largest_tiles(self, kernel: Kernel, chains: list[Chain], kept_across: int) -> list[Tiling]:
        """The largest tiles along the last chain, in single rows of the others, that seem to fit."""
        together = alike(kernel, chains)
        if together is None:
            return []
        loops = [(each, _rows(kernel, each)) for each in together]
        tilings = (Tiling((*loops[:-1], (together[-1], n))) for n in _divisors(loops[-1][1]))
        fitting = (
            each for each in tilings if each.iterations <= MOST_ITERATIONS and self._fits(kernel, each, kept_across)
        )
        return list(islice(fitting, SIZES))

    def _least_us(self, kernel: Kernel, tiling: Tiling) -> float:
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

    def _fits(self, kernel: Kernel, tiling: Tiling, kept_across: int) -> bool:
        """Whether at every op there is room for what its tile makes and reads, as far as that is the chain's own, next
        to what may be kept in LX from before the chain to behind it."""
        own = _own(kernel, set(tiling.inside))
        room = max(self.room - kept_across, self.room // 4) * tiling.iterations
        return all(_bytes_used(kernel, kernel.ops[at], own) <= room for at in tiling.inside)

    def _us(self, whole: Kernel, part: Kernel, tiling: Tiling | None) -> float:
        """Microseconds of a part of the kernel, planned by itself; infinite where it cannot be tiled so."""
        kernel = Kernel(whole.name, dict(whole.buffers), list(whole.ops))
        try:
            if tiling is not None:
                kernel.ops = split_inside(tiling, whole.ops, part.ops)
                add_tile_loops(kernel, tiling, SCOPES)
            return modelled_us(kernel, self.given)
        except (Unsupported, NotAligned):
            return float("inf")


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
    """Buffers that the ops make and nothing else uses."""
    outside = {n for at, op in enumerate(kernel.ops) if at not in inside for n in (op.out.buffer, *op.reads())}
    made = {kernel.ops[at].out.buffer for at in inside}
    return {name for name in made - outside if kernel.buffers[name].kind == "internal"}


def _bytes_used(kernel: Kernel, op: LoopOp, among: set[str] | None = None) -> int:
    """Bytes of the internal buffers that an op uses; a pointwise result takes the place of an operand of its size."""
    names = {access.buffer for access in op.accesses() if kernel.buffers[access.buffer].kind == "internal"}
    sizes = {name: _bytes(kernel, name) for name in names if among is None or name in among}
    if op.row.is_pointwise and op.out.buffer in sizes:
        mine = sizes.pop(op.out.buffer)
        return max(mine, sum(sizes.values()))
    return sum(sizes.values())


def _bytes(kernel: Kernel, name: str) -> int:
    buffer = kernel.buffers[name]
    return prod(buffer.size) * max(buffer.dtype.itemsize, 2)
