"""Restickify where the operands of an op do not lie in sticks the way the op needs.

Before: layouts are settled. After: every op finds its operands as the table below asks; copies in between bring them
there. Moves take any layout; they are what restickify is made of.

| op | sticks |
|---|---|
| pointwise | an operand lies along the output's stick loop, or does not move along its own sticks at all |
| reduction | the output lies along the input's stick loop, or has one element per stick where that loop is folded |
| matmul C[m,n] = A[m,k] B[k,n] | C along n, A along k, B along n or k |
| attention O[q,e] = softmax(Q[q,d] K[l,d] + mask[q,l]) V[l,e] | O and V along e, Q and K along d, the mask along l |
| gather, scatter | what an index moves along is a dimension of the table's layout, or several, which it is split into |

Nothing comes between the ops of a tile loop: a copy of what the loop makes is made inside it, any other before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch

from ...ops.table import WIDENED_BY_MATMUL
from ..errors import Unsupported
from ..loop_ir import Access, Constant, Indirect, LoopOp, contiguous
from .coordinates import Piece
from .device_ir import Plan, ceil_div
from .lift_ops import pieces_of
from .lift_views import NotAligned, TooManyPieces, lift
from .split_index import split_index

MANY_PIECES = 256


def insert_restickify(plan: Plan) -> None:
    """Rewrites ``plan.kernel.ops``."""
    _Inserter(plan).run()


@dataclass
class _Inserter:
    plan: Plan
    ops: list[LoopOp] = field(default_factory=list)
    made: dict[object, Access] = field(default_factory=dict)  # restickified operands, while they are up to date
    versions: dict[str, int] = field(default_factory=dict)
    loop: int = 0  # where in ``ops`` the tile loop begins that the next op is in; behind them all if it is in none

    def run(self) -> None:
        for op in self.plan.kernel.ops:
            if not op.tile_loops or not self.ops or self.ops[-1].tile_loops[:1] != op.tile_loops[:1]:
                self.loop = len(self.ops)
            row = op.row
            if row.is_matmul:
                self.matmul(op)
            elif row.is_attention:
                self.attention(op)
            elif row.is_paged:
                self.paged(op)
            elif row.is_pointwise and not row.is_move:
                self.pointwise(op)
            elif row.is_reduction:
                self.reduction(op)
            elif row.kind in ("scan", "argreduce", "topk"):
                self.fold(op)
            elif op.indirect:
                self.indexed(op)
            else:
                self.add(op)
        self.plan.kernel.ops = self.ops

    def add(self, op: LoopOp) -> None:
        source = op.ins[0] if op.row.is_move else None
        if isinstance(source, Access) and self.tangled(op):
            # Two sizes without a common measure: each is simple against plain order, if not against the other.
            flat = self.plan.temporary(self.dtype(source), (prod(op.sizes),), (0,))
            between = Access(flat.name, contiguous(op.sizes))
            self.ops.append(merged(replace(op, out=between)))
            op = merged(replace(op, ins=(between,)))
        self.ops.append(op)
        self.versions[op.out.buffer] = self.versions.get(op.out.buffer, 0) + 1

    def add_before_loop(self, move: LoopOp) -> None:
        inside = self.ops[self.loop :]
        del self.ops[self.loop :]
        self.add(move)
        self.loop = len(self.ops)
        self.ops += inside

    def tangled(self, op: LoopOp) -> bool:
        """Whether a move falls into a great many pieces."""
        plain = [self.plan.operand(a, -1) for a in (*op.ins, op.out) if isinstance(a, Access)]
        for operands in (self.plan.operands(op), plain):
            try:
                lift(op.sizes, operands, MANY_PIECES)
            except NotAligned:
                continue
            except TooManyPieces:
                return True
            return False
        return False

    def pointwise(self, op: LoopOp) -> None:
        sizes = op.sizes
        loop = self.plan.lane_loop(op.out, sizes)
        out: Access | None = op.out
        if not self.lies_along(op.out, sizes, loop):
            loop, out = (len(sizes) - 1 if loop < 0 else loop), None
        ins = [
            a if isinstance(a, Constant) or self.lies_along(a, sizes, loop) else self.restickified(a, op, loop)
            for a in op.ins
        ]
        self.emit(op, ins, out, loop)

    def reduction(self, op: LoopOp) -> None:
        sizes, kept = op.sizes, len(op.sizes) - op.reduced
        source = op.ins[0]
        assert isinstance(source, Access)
        loop = self.plan.lane_loop(source, sizes)
        if not self.lies_along(source, sizes, loop) or not self.folds_whole(op, source):
            loop = next((i for i in reversed(range(len(sizes))) if sizes[i] > 1 and source.strides[i]), len(sizes) - 1)
            source = self.restickified(source, op, loop)
        stick = loop if loop < kept else -1
        out = op.out if self.lies_along(op.out, sizes, stick) else None
        self.emit(op, [source], out, stick)

    def fold(self, op: LoopOp) -> None:
        """Ops that go along whole rows (scan, topk ...): a row is one loop, for what is read and what is written."""
        source = op.ins[0]
        assert isinstance(source, Access)
        if not self.lies_along(source, op.sizes, self.plan.lane_loop(source, op.sizes)) or not self.folds_whole(
            op, source
        ):
            source = self.restickified(source, op, len(op.sizes) - 1)
        loop = self.plan.lane_loop(op.out, op.sizes)
        fits = self.lies_along(op.out, op.sizes, loop) and self.folds_whole(op, op.out)
        self.emit(op, [source], op.out if fits else None, loop)

    def matmul(self, op: LoopOp) -> None:
        op = self.as_it_lies(op)
        sizes, n, k = op.sizes, len(op.sizes) - 2, len(op.sizes) - 1
        a, b = op.ins
        assert isinstance(a, Access) and isinstance(b, Access)
        if not self.in_sticks(a, sizes, k) or not self.folds_whole(op, a):
            a = self.restickified(a, op, k, whole=True)
        along_n, along_k = self.in_sticks(b, sizes, n), self.in_sticks(b, sizes, k)
        # In sticks along k every core reaches from the first to the last of its share of k, whatever its share of n.
        too_wide = not along_n and self.plan.layouts[b.buffer].device_bytes() > self.plan.span * self.plan.cores
        if not (along_n or along_k) or too_wide or not self.folds_whole(op, b):
            b = self.restickified(b, op, n, whole=True)
        self.emit(op, [a, b], op.out if self.in_sticks(op.out, sizes, n) else None, n)

    def attention(self, op: LoopOp) -> None:
        sizes = op.sizes
        q, e, l, d = (len(sizes) - i for i in (4, 3, 2, 1))  # noqa: E741
        whole = [e, l, d, *([q] if op.parameters[1] else [])]  # causal rows are counted from the first

        def lies(access: Access, loop: int) -> bool:
            along = self.lies_along if loop == l else self.in_sticks
            return along(access, sizes, loop) and all(self.is_one_loop(access, sizes, each) for each in whole)

        ins = [
            a if isinstance(a, Constant) or lies(a, loop) else self.restickified(a, op, loop, whole=loop != l)
            for a, loop in zip(op.ins, (d, d, e, l), strict=True)
        ]
        self.emit(op, ins, op.out if lies(op.out, e) else None, e)

    def paged(self, op: LoopOp) -> None:
        """Queries and results are brought into sticks along their elements. A cache is not copied: it has to lie so."""
        loops = range(len(op.sizes))
        e, d = 3, 7

        def lies(access: Access, loop: int) -> bool:
            return self.in_sticks(access, op.sizes, loop) and all(
                self.is_one_loop(access, op.sizes, each) for each in loops
            )

        query, keys, values, *rest = op.ins
        assert isinstance(query, Access) and isinstance(keys, Access) and isinstance(values, Access)
        for cache, loop in ((keys, d), (values, e)):
            if not lies(cache, loop):
                raise Unsupported(
                    f"paged attention{op.where()}: a cache of [pages, page, heads, head] needs its sticks along the "
                    f"head, and a dimension of its layout for each of its own; it lies as "
                    f"{self.plan.layouts[cache.buffer]}"
                )
        query = query if lies(query, d) else self.restickified(query, op, d, whole=True)
        table, *of_heads = rest
        ready = replace(op, ins=(query, keys, values, table, *(self.single(each, op, e) for each in of_heads)))
        if lies(op.out, e):
            self.add(ready)
        else:
            self.emit(ready, ready.ins, None, e)

    def single(self, access: Access | Constant, op: LoopOp, still: int) -> Access | Constant:
        """An operand whose elements are looked up one by one; in sticks of their own where its loops do not stay whole.
        ``still``: a loop along which it does not move."""
        if isinstance(access, Constant):
            return access
        (*pieces,) = lift(op.sizes, [self.plan.operand(access, -1)], MANY_PIECES)
        whole = len(pieces) == 1 and len(set(pieces[0].origins)) == len(pieces[0].origins)
        return access if whole else self.restickified(access, op, still)

    def as_it_lies(self, op: LoopOp) -> LoopOp:
        """The product, or the same with its operands exchanged: C' = B' A'.

        The unit wants its second operand along the columns. A large one that lies along the depth is better taken as
        the first; it is the other one that is turned then, and the result.
        """
        m, n, k = (len(op.sizes) - i for i in (3, 2, 1))
        a, b = op.ins
        assert isinstance(a, Access) and isinstance(b, Access)
        if self.in_sticks(b, op.sizes, n) or not self.in_sticks(b, op.sizes, k) or op.sizes[n] == 1:
            return op
        if self.dtype(b) in WIDENED_BY_MATMUL and self.dtype(a) != self.dtype(b):  # only the second may be narrower
            return op
        given, columns, rows = (prod(op.sizes[i] for i in loops) for loops in ((n, k), (m, k), (m, n)))
        sparse = op.sizes[n] * 64 * ceil_div(op.sizes[m], 64)  # the result in sticks along the rows
        if given <= columns + sparse + rows or not self.is_one_loop(a, op.sizes, m):
            return op

        order = [*range(m), n, m, k]

        def exchanged(access: Access) -> Access:
            return replace(access, strides=tuple(access.strides[i] for i in order))

        sizes, names = tuple(op.sizes[i] for i in order), tuple(op.names[i] for i in order) if op.names else ()
        return replace(op, sizes=sizes, names=names, out=exchanged(op.out), ins=(exchanged(b), exchanged(a)))

    def is_one_loop(self, access: Access, sizes: tuple[int, ...], loop: int) -> bool:
        """Whether an operand's layout leaves a loop whole."""
        if sizes[loop] == 1:
            return True
        try:
            (piece,) = lift(sizes, [self.plan.operand(access, self.plan.lane_loop(access, sizes))], MANY_PIECES)
        except (NotAligned, TooManyPieces, ValueError):
            return False
        return piece.origins.count(loop) == 1

    def indexed(self, op: LoopOp) -> None:
        """A table whose dimensions are not those of its layout, as of a slice of columns, is indexed in a copy, unless
        an index falls into several that are."""
        try:
            pieces_of(self.plan, op)
        except (Unsupported, NotAligned):
            split = split_index(self.plan, op)
            if split is not None:
                for part in split.made:
                    self.pointwise(part)
                self.indexed(split.op)
            elif op.row.is_gather:
                table = op.ins[0]
                assert isinstance(table, Access)
                moved, jumps, copy, _ = self.dense_table(op, table)
                self.add_before_loop(copy)
                self.add(replace(op, ins=(moved, *op.ins[1:]), indirect=jumps))
            else:
                moved, jumps, copy, back = self.dense_table(op, op.out)
                self.add(copy)
                self.add(replace(op, out=moved, indirect=jumps))
                self.add(back)
        else:
            self.add(op)

    def dense_table(self, op: LoopOp, table: Access) -> tuple[Access, tuple[Indirect, ...], LoopOp, LoopOp]:
        """The table in a buffer with a dimension per loop and index, and the copies there and back."""
        loops = [i for i, stride in enumerate(table.strides) if stride and op.sizes[i] > 1]
        strides = (*(table.strides[i] for i in loops), *(jump.stride for jump in op.indirect))
        sizes = (*(op.sizes[i] for i in loops), *(jump.extent if jump.stride else 1 for jump in op.indirect))
        order = tuple(sorted(range(len(sizes)), key=lambda d: -strides[d]))
        buffer = self.plan.temporary(self.dtype(table), sizes, order)
        given, dense = Access(table.buffer, strides, table.offset), Access(buffer.name, buffer.stride)
        moved = [0] * len(op.sizes)
        for i, stride in zip(loops, buffer.stride, strict=False):
            moved[i] = stride
        jumps = zip(op.indirect, buffer.stride[len(loops) :], strict=True)
        return (
            Access(buffer.name, tuple(moved)),
            tuple(replace(jump, stride=stride) for jump, stride in jumps),
            LoopOp("restickify", sizes, dense, (given,), source=op.source, aten=op.aten),
            LoopOp("restickify", sizes, given, (dense,), source=op.source, aten=op.aten),
        )

    # --- what an operand looks like

    def lies_along(self, access: Access, sizes: tuple[int, ...], loop: int) -> bool:
        """Along its sticks it moves with ``loop`` only, from the head of one on; or it does not move there."""
        own = self.plan.lane_loop(access, sizes)
        try:
            if own < 0:
                return not any(row[-1] for piece in self.pieces(access, sizes) for row in piece.operands[0].steps)
            if own != loop:
                return False
            lift(sizes, [self.plan.operand(access, loop)], MANY_PIECES)
        except (NotAligned, TooManyPieces):
            return False
        return True

    def in_sticks(self, access: Access, sizes: tuple[int, ...], loop: int) -> bool:
        """Lies along ``loop`` from lane 0 on, also where that loop has a single point."""
        if self.plan.lane_loop(access, sizes) >= 0:
            return self.lies_along(access, sizes, loop)
        try:
            pieces = self.pieces(access, sizes)
        except TooManyPieces:
            return False
        still = not any(row[-1] for p in pieces for row in [p.operands[0].constant, *p.operands[0].steps])
        return still and sizes[loop] == 1

    def pieces(self, access: Access, sizes: tuple[int, ...]) -> list[Piece]:
        return lift(sizes, [self.plan.operand(access, -1)], MANY_PIECES)

    def folds_whole(self, op: LoopOp, access: Access) -> bool:
        """No piece of the view ends inside what the op folds."""
        return folds_whole(op, lift(op.sizes, [self.plan.operand(access, self.plan.lane_loop(access, op.sizes))]))

    # --- bringing operands into place

    def restickified(self, access: Access, op: LoopOp, loop: int, whole: bool = False) -> Access:
        """A copy of an operand over the loops it moves along, in sticks along ``loop``; one per stick if it does not.

        ``whole``: along ``loop`` it is written out also where it stands still.
        """
        plan, sizes = self.plan, op.sizes
        moving = [i for i, stride in enumerate(access.strides) if sizes[i] > 1 and (stride or (whole and i == loop))]
        key = (access, sizes, loop, whole, self.versions.get(access.buffer, 0))
        found = self.made.get(key)
        if found is not None:
            return found
        order = _rows_first(op, [i for i in moving if i != loop]) + ([loop] if loop in moving else [])
        sparse = loop not in moving and bool(moving)
        copied = tuple(sizes[i] for i in order)
        buffer = plan.temporary(self.dtype(access), copied, tuple(range(len(order))), sparse)
        strides = [0] * len(sizes)
        for i, stride in zip(order, buffer.stride, strict=True):
            strides[i] = stride
        loops_around = op.tile_loops if any(each.out.buffer == access.buffer for each in self.ops[self.loop :]) else ()
        loops = [*range(len(loops_around)), *(i for i in order if i >= len(loops_around))]
        move = LoopOp(
            "restickify",
            tuple(sizes[i] for i in loops),
            Access(buffer.name, tuple(strides[i] for i in loops)),
            (Access(access.buffer, tuple(access.strides[i] for i in loops), access.offset),),
            source=op.source,
            aten=op.aten,
            tile_loops=loops_around,
            names=tuple(op.names[i] for i in loops) if loops_around else (),
        )
        if loops_around:
            self.add(move)
        else:
            self.add_before_loop(move)
        self.made[key] = Access(buffer.name, tuple(strides))
        return self.made[key]

    def emit(self, op: LoopOp, ins: Sequence[Access | Constant], out: Access | None, loop: int) -> None:
        """The op itself; where its output does not lie as it must, through a buffer that does."""
        if out is not None:
            ready = replace(op, ins=tuple(ins))
            try:
                if folds_whole(ready, lift(op.sizes, self.plan.operands(ready))):
                    self.add(ready)
                    return
            except NotAligned:  # each operand by itself does, but not all at once: sticks of different lengths
                pass
            whole = op.row.is_product
            ins = [a if isinstance(a, Constant) else self.restickified(a, op, self.loop_of(a, op), whole) for a in ins]
        kept = len(op.sizes) - op.reduced
        sizes = op.sizes[:kept]
        folds = 0 <= loop < kept
        order = _rows_first(op, [i for i in range(kept) if i != loop]) + ([loop] if folds else [])
        buffer = self.plan.temporary(self.dtype(op.out), sizes, tuple(order), sparse=not folds and bool(order))
        through = Access(buffer.name, (*buffer.stride, *([0] * op.reduced)))
        self.add(replace(op, ins=tuple(ins), out=through))
        self.add(
            LoopOp(
                "restickify",
                sizes,
                replace(op.out, strides=op.out.strides[:kept]),
                (replace(through, strides=buffer.stride),),
                source=op.source,
                aten=op.aten,
                tile_loops=op.tile_loops,
                names=op.names[:kept],
            )
        )

    def loop_of(self, access: Access, op: LoopOp) -> int:
        loop = self.plan.lane_loop(access, op.sizes)
        return loop if loop >= 0 else len(op.sizes) - 1

    def dtype(self, access: Access) -> torch.dtype:
        return self.plan.kernel.buffers[access.buffer].dtype


def _rows_first(op: LoopOp, loops: list[int]) -> list[int]:
    """What comes first lies next to the sticks: in a matrix product rows, and not batches."""
    return [*loops[-1:], *loops[:-1]] if op.row.is_product else loops


def merged(op: LoopOp) -> LoopOp:
    """The same move with loops that go on evenly as one, which then has no name; tile loops stay."""
    accesses = [*(a for a in op.ins if isinstance(a, Access)), op.out]
    loops: list[tuple[int, list[int], str]] = []
    for i, n in enumerate(op.sizes):
        steps = [a.strides[i] for a in accesses]
        if n == 1:
            continue
        if len(loops) > len(op.tile_loops) and all(
            outer == n * inner for outer, inner in zip(loops[-1][1], steps, strict=True)
        ):
            loops[-1] = (loops[-1][0] * n, steps, "")
        else:
            loops.append((n, steps, op.names[i] if op.names else ""))
    moved = [replace(a, strides=tuple(steps[k] for _, steps, _ in loops)) for k, a in enumerate(accesses)]
    names = tuple(name for _, _, name in loops) if op.names else ()
    return replace(op, sizes=tuple(n for n, _, _ in loops), ins=tuple(moved[:-1]), out=moved[-1], names=names)


def folds_whole(op: LoopOp, pieces: list[Piece]) -> bool:
    """Every piece folds all of what the op folds, and in one loop where the op needs a row."""
    scan = op.row.is_scan
    kept = len(op.sizes) - (1 if scan else op.reduced)
    one_loop = scan or op.row.is_topk or op.row.is_product
    for piece in pieces:
        folded = [(n, origin) for n, origin in zip(piece.counts, piece.origins, strict=True) if origin >= kept]
        points, several = prod(n for n, _ in folded), len({origin for _, origin in folded}) < len(folded)
        if points != prod(op.sizes[kept:]) or (one_loop and several):
            return False
    return True
