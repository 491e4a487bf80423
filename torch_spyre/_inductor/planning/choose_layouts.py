"""Layouts of the values inside a kernel, chosen by the clock where the rules leave a restickify or a batch of products.

Before: every buffer has the layout that :mod:`propagate_layouts` finds by rule. After: some lie in another order of
dimensions, with others in sticks, and what is made from them follows by the same rules. An op is asked for its time
with all that has to be restickified for it, divided as is best for itself; what costs least over the whole kernel is
kept, unless a sum would go another way. Equal layers are changed alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from math import inf, prod

from .. import config
from ..errors import Unsupported
from ..layout.device_ir import Plan
from ..layout.fold_order import fold_orders
from ..layout.insert_restickify import insert_restickify
from ..layout.lift_ops import lift_ops
from ..layout.lift_views import NotAligned
from ..layout.propagate_layouts import follow_rules
from ..loop_ir import Kernel, LoopOp
from .cost import Costs
from .divide_work import divide_each, divide_work

WORTH_US = 2.0  # of moves for an op, from where on other layouts are looked for; and what another one has to save
TRIALS = 96  # whole assignments that are timed
ORDERS = 12  # of one buffer
MOST_DIMENSIONS = 5
AROUND = 12  # ops that are planned with those that change
MOST_AROUND = 100

Orders = dict[str, tuple[int, ...]]  # of buffers that do not follow the rules
Key = tuple[int, ...]  # of an op in its layouts


def choose_layouts(plan: Plan) -> Iterator[Plan]:
    """The kernel in the layouts of the rules, and then in others that promise to be faster, if there are any.

    Whether it is worth looking shows only when the first has its restickifies: it is asked for the second then.
    """
    by_rule = plan.copy()
    yield plan
    if config.planning == "together" and _may_gain(by_rule, plan):
        yield from other_layouts(by_rule)


def _may_gain(plan: Plan, restickified: Plan) -> bool:
    """Whether there is a value to lay out otherwise, and something that suffers: a move, or a batch of products."""
    inside = any(buffer.kind == "internal" and len(buffer.size) > 1 for buffer in plan.kernel.buffers.values())
    moves = len(restickified.kernel.ops) > len(plan.kernel.ops)
    return inside and (moves or any(map(_is_batched, plan.kernel.ops)))


def other_layouts(plan: Plan) -> list[Plan]:
    """The same kernel in layouts that make it faster than the rules do; none if the rules are best."""
    chooser = _Chooser(plan)
    chooser.improve()
    return [chooser.assigned(chooser.orders)] if chooser.orders and chooser.helps_together() else []


class _Chooser:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.given = {name: plan.layouts[name] for name in (buffer.name for buffer in plan.kernel.inputs())}
        self.times: dict[Key, tuple[float, float]] = {}  # of an op in layouts: all of it, and the moves alone
        facts: dict[object, int] = {}
        self.facts = [facts.setdefault(self._facts(op), len(facts)) for op in plan.kernel.ops]
        self.layouts: dict[object, int] = {}  # numbers of those that were met
        self.orders: Orders = {}
        self.folds = fold_orders(plan)
        self.trials = 0
        self.best, self.total = plan, self.time_of(plan)

    def improve(self) -> None:
        """One suspect after the other, the most expensive first, until none can be helped."""
        refused: set[Key] = set()
        while self.trials < TRIALS:
            found = [(key, ats) for key, ats in self.suspects() if key not in refused]
            if not found:
                return
            key, places = found[0]
            if not any(self.attempt(places, position) for position in range(len(self.op(places[0]).accesses()))):
                refused.add(key)

    def suspects(self) -> Iterator[tuple[Key, list[int]]]:
        """Ops that moves are made for, and batches of products; equal ones together."""
        places: dict[Key, list[int]] = defaultdict(list)
        for at, key in enumerate(self.keys(self.best)):
            places[key].append(at)
        ranked = sorted(places.items(), key=lambda each: -self.times[each[0]][1] * len(each[1]))
        for key, ats in ranked:
            if _is_batched(self.op(ats[0])) or self.times[key][1] > WORTH_US:
                yield key, ats

    def attempt(self, places: list[int], position: int) -> bool:
        """Other orders of one operand of equal ops; the first that helps is kept."""
        names = list(dict.fromkeys(self.op(at).accesses()[position].buffer for at in places))
        buffers = self.best.kernel.buffers
        first = buffers[names[0]]
        asked_for = self.plan.kernel.buffers
        alike = [
            name
            for name in names
            if buffers[name].kind == "internal" and buffers[name].size == first.size and asked_for[name].order is None
        ]
        for order in _orders(len(first.size)) if alike else ():
            orders = self.orders | dict.fromkeys(alike, order)
            if orders == self.orders or self.trials >= TRIALS:
                continue
            self.trials += 1
            tried = self.assigned(orders)
            total = self.time_of(tried)
            if total < self.total - WORTH_US and fold_orders(tried) == self.folds:
                self.best, self.total, self.orders = tried, total, orders
                return True
        return False

    def helps_together(self) -> bool:
        """Whether the first ops that it changes, and those around them, are faster too if they are planned together:
        in LX it matters less how values lie."""
        ops = self.plan.kernel.ops
        both = zip(self.keys(self.plan), self.keys(self.best), strict=True)
        changed = [at for at, (by_rule, chosen) in enumerate(both) if by_rule != chosen]
        first = last = changed[0]
        for at in changed:
            last = at if at - last <= AROUND and at - first <= MOST_AROUND else last
        places = max(first - AROUND, 0), min(last + AROUND, len(ops) - 1)
        before, after = (_planned_us(plan, *places) for plan in (self.plan, self.best))
        return after < before - WORTH_US

    def op(self, at: int) -> LoopOp:
        return self.best.kernel.ops[at]

    def assigned(self, orders: Orders) -> Plan:
        """The kernel with these orders, and what follows from them by rule."""
        kernel = self.plan.kernel
        ordered = {name: replace(kernel.buffers[name], order=order) for name, order in orders.items()}
        tried = self.plan.of(Kernel(kernel.name, kernel.buffers | ordered, kernel.ops), dict(self.given))
        follow_rules(tried)
        return tried

    def time_of(self, plan: Plan) -> float:
        """Microseconds of all ops, each by itself."""
        total = 0.0
        for op, key in zip(plan.kernel.ops, self.keys(plan), strict=True):
            if key not in self.times:
                self.times[key] = _times(plan, op)
            total += self.times[key][0]
        return total

    def keys(self, plan: Plan) -> list[Key]:
        """Of each op: equal for those that are equal but for the names of their buffers."""
        numbers = {name: self.layouts.setdefault(each, len(self.layouts)) for name, each in plan.layouts.items()}
        return [
            (facts, *(numbers[access.buffer] for access in op.accesses()))
            for facts, op in zip(self.facts, plan.kernel.ops, strict=True)
        ]

    def _facts(self, op: LoopOp) -> object:
        """What there is to an op in any layouts."""
        buffers = self.plan.kernel.buffers
        shown = [(access.strides, self.plan.offset(access), buffers[access.buffer].dtype) for access in op.accesses()]
        return (op.name, op.sizes, op.reduced, tuple(count for _, count in op.tile_loops), op.indirect, tuple(shown))


def _times(plan: Plan, op: LoopOp) -> tuple[float, float]:
    """Microseconds of an op with what has to be moved for it, and of the moves alone."""
    names = [access.buffer for access in op.accesses()]
    buffers = {name: replace(plan.kernel.buffers[name], kind="input") for name in names}
    alone = plan.of(Kernel("alone", buffers, [op]), {name: plan.layouts[name] for name in names})
    try:
        insert_restickify(alone)
        lift_ops(alone)
        costs = Costs(alone)
        divide_each(alone, costs)
    except (Unsupported, NotAligned):
        return inf, inf
    total = moves = 0.0
    for each in alone.device_ops:
        time = costs.time(each, each.slices, (False,) * len(each.operands)) * prod(
            count for _, count in each.loop_op.tile_loops
        )
        total += time
        moves += time if each.loop_op.name == "restickify" else 0
    return total, moves


def _planned_us(plan: Plan, first: int, last: int) -> float:
    """Microseconds of some ops, planned together as a kernel of their own."""
    part = plan.kernel.part(first, last)
    alone = plan.of(part, {name: plan.layouts[name] for name in part.buffers})
    try:
        insert_restickify(alone)
        lift_ops(alone)
        with config.patch(plan_bound=False):
            divide_work(alone)
    except (Unsupported, NotAligned):
        return inf
    return alone.planned_us


def _is_batched(op: LoopOp) -> bool:
    return op.row.is_matmul and prod(op.sizes[:-3]) > 1


def _orders(rank: int) -> list[tuple[int, ...]]:
    """All of them, or as many as differ most where there are too many."""
    every = list(permutations(range(rank))) if 1 < rank <= MOST_DIMENSIONS else []
    return every[:: max(1, len(every) // ORDERS)]
