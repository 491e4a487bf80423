"""Ops one after the other that go along a dimension together: what one row of it needs, no other row makes.

Nothing in loop IR says that two loops are the same dimension. They are if they move through the memory that both ops
show in equal steps, as often; so a dimension is followed from op to op. What lies between the ops of a chain and
needs nothing of them, as the values of an attention are made between its weights and their product, moves in front.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..errors import Unsupported
from ..loop_ir import Access, Kernel, LoopOp
from ..loop_ir.tile_loops import check_tiles

REACH = 40  # ops before and behind the first one that are looked at
KINDS = ("pointwise", "reduction", "matmul")
DIMENSION = "dimension"


@dataclass(frozen=True)
class Chain:
    """Ops by their positions, each with its loop along the dimension, and those between them that move in front."""

    loops: dict[int, int]
    before: frozenset[int]

    @property
    def first(self) -> int:
        return min(self.loops)

    @property
    def last(self) -> int:
        return max(self.loops)

    def within(self, first: int, last: int) -> Chain:
        """What is left of it from one of its ops to another."""
        loops = {at: loop for at, loop in self.loops.items() if first <= at <= last}
        return Chain(loops, frozenset(at for at in self.before if min(loops) < at < max(loops)))

    def moved(self, by: int) -> Chain:
        """The same ops, counted from elsewhere."""
        return Chain({at + by: loop for at, loop in self.loops.items()}, frozenset(at + by for at in self.before))


def joins(op: LoopOp) -> bool:
    """Whether an op may be part of a chain: hints already say how an op runs."""
    return op.row.kind in KINDS and not (op.hints or op.tile_loops or op.indirect)


def kept(op: LoopOp) -> int:
    """Loops that are not folded."""
    return len(op.sizes) - op.reduced


def split_alike(kernel: Kernel, positions: Sequence[int]) -> None:
    """Where one op walks memory in two loops and another in one, as 8 x 4 heads or 32, that one gets two as well.

    A product keeps its rows, columns and depth, and whatever folds what it folds.
    """
    units: dict[str, set[int]] = {}  # by buffer: where loops begin to move
    for at in positions:
        _note(kernel, kernel.ops[at], units)
    changed = True
    while changed:
        changed = False
        for at in positions:
            while (found := _cut(kernel.ops[at], units)) is not None:
                kernel.ops[at] = split_loop(kernel.ops[at], *found)
                _note(kernel, kernel.ops[at], units)
                changed = True


def _note(kernel: Kernel, op: LoopOp, units: dict[str, set[int]]) -> None:
    for access in op.accesses():
        if kernel.buffers[access.buffer].kind == "internal":
            moving = (s for n, s in zip(op.sizes, access.strides, strict=True) if n > 1 and s > 0)
            units.setdefault(access.buffer, set()).update(moving)


def _cut(op: LoopOp, units: dict[str, set[int]]) -> tuple[int, int] | None:
    """A loop to be split, and the points of its inner part."""
    for loop in range(kept(op) - (2 if op.row.is_matmul else 0)):
        for access in op.accesses():
            stride, n = access.strides[loop], op.sizes[loop]
            for unit in sorted(units.get(access.buffer, ())) if stride > 0 else ():
                inner = unit // stride
                if unit % stride == 0 and 1 < inner < n and n % inner == 0:
                    return loop, inner
    return None


def split_loop(op: LoopOp, loop: int, inner: int) -> LoopOp:
    """A loop as two."""

    def twice(access: Access) -> Access:
        stride = access.strides[loop]
        return replace(access, strides=(*access.strides[:loop], stride * inner, *access.strides[loop:]))

    return replace(
        op,
        sizes=(*op.sizes[:loop], op.sizes[loop] // inner, inner, *op.sizes[loop + 1 :]),
        out=twice(op.out),
        ins=tuple(twice(each) if isinstance(each, Access) else each for each in op.ins),
        names=(*op.names[:loop], "", *op.names[loop:]) if op.names else (),
    )


def near(kernel: Kernel, seed: int) -> range:
    return range(max(seed - REACH, 0), min(seed + REACH + 1, len(kernel.ops)))


def chain_of(kernel: Kernel, seed: int, loop: int) -> Chain | None:
    """The longest chain around an op along one of its loops; None if there is no other op in it."""
    window = near(kernel, seed)
    loops = _follow(kernel, window, seed, loop)
    chain = Chain({seed: loop}, frozenset())
    for way in (range(seed + 1, window.stop), range(seed - 1, window.start - 1, -1)):
        chain = _grown(kernel, chain, way, loops)
    return chain.within(chain.first, chain.last) if len(chain.loops) > 1 else None


def alike(kernel: Kernel, chains: Sequence[Chain]) -> list[Chain] | None:
    """Chains along several dimensions, each with the ops that all of them have; None if the others are in their way."""
    inside = set.intersection(*(set(chain.loops) for chain in chains))
    before = frozenset(at for at in range(min(inside), max(inside)) if at not in inside)
    found = [Chain({at: chain.loops[at] for at in inside}, before) for chain in chains]
    return found if all(_moves_in_front(kernel, found[0], at) for at in before) else None


def _grown(kernel: Kernel, chain: Chain, way: range, loops: dict[int, int]) -> Chain:
    skipped: list[int] = []
    for at in way:
        if kernel.ops[at].tile_loops:
            break
        if at in loops:
            wider = Chain({**chain.loops, at: loops[at]}, chain.before | frozenset(skipped))
            if _keeps_apart(kernel, wider):
                chain, skipped = wider, []
                continue
        skipped.append(at)
        if way.step > 0 and not _moves_in_front(kernel, chain, at):
            less = _without(kernel, chain, at)
            if less is None:
                break
            chain = less
    return chain


def _without(kernel: Kernel, chain: Chain, at: int) -> Chain | None:
    """The chain without what keeps an op from moving in front, if all of that can move there too."""
    away = {each for each in chain.loops if each < at and _in_the_way(kernel.ops[each], kernel.ops[at])}
    less = Chain({each: loop for each, loop in chain.loops.items() if each not in away}, chain.before | away)
    if chain.first in away or not all(_moves_in_front(kernel, less, each) for each in less.before):
        return None
    return less


def _keeps_apart(kernel: Kernel, chain: Chain) -> bool:
    """What lies between its ops can move in front, and no row needs what another makes."""
    if not all(_moves_in_front(kernel, chain, at) for at in chain.before):
        return False
    scratch = Kernel(
        kernel.name, kernel.buffers, [_named(kernel.ops[at], loop) for at, loop in sorted(chain.loops.items())]
    )
    rows = next(kernel.ops[at].sizes[loop] for at, loop in chain.loops.items())
    try:
        check_tiles(scratch, list(range(len(scratch.ops))), DIMENSION, rows)
    except Unsupported:
        return False
    return True


def _named(op: LoopOp, loop: int) -> LoopOp:
    return replace(op, names=tuple(DIMENSION if i == loop else "" for i in range(len(op.sizes))))


def _moves_in_front(kernel: Kernel, chain: Chain, at: int) -> bool:
    """Whether an op can go before those ops of the chain that stand before it."""
    return not any(_in_the_way(kernel.ops[each], kernel.ops[at]) for each in chain.loops if each < at)


def _in_the_way(one: LoopOp, other: LoopOp) -> bool:
    """Whether an op has to wait for one before it."""
    return one.out.buffer in (other.out.buffer, *other.reads()) or other.out.buffer in one.reads()


def _follow(kernel: Kernel, window: range, seed: int, loop: int) -> dict[int, int]:
    """The loops along the dimension of one loop, by op: they move through memory that another one moves through."""
    known: dict[str, tuple[int, int]] = {}  # by buffer: how far its rows lie apart, how many there are
    found = {seed: loop}
    _learn(kernel.ops[seed], loop, known)
    changed = True
    while changed:
        changed = False
        for at in window:
            if at in found or not joins(kernel.ops[at]):
                continue
            along = next(_along(kernel.ops[at], known), None)
            if along is not None:
                found[at], changed = along, True
                _learn(kernel.ops[at], along, known)
    return found


def _learn(op: LoopOp, loop: int, known: dict[str, tuple[int, int]]) -> None:
    for access in op.accesses():
        if access.strides[loop]:
            known.setdefault(access.buffer, (access.strides[loop], op.sizes[loop]))


def _along(op: LoopOp, known: dict[str, tuple[int, int]]) -> Iterator[int]:
    for access in op.accesses():
        for loop in range(kept(op)):
            if op.sizes[loop] > 1 and known.get(access.buffer) == (access.strides[loop], op.sizes[loop]):
                yield loop
