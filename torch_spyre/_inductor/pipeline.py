"""The pipeline: every pass from loop IR to OpSpecs, in order. Start reading here.

A **pass** changes the plan in place. An **exploration** makes several plans, runs its own stages on each and goes on
with one of them. :func:`run` walks the list: it logs the IR after every stage, writes it to the debug directory, and
verifies it with ``TORCH_SPYRE_VERIFY=1``: all rules of its IRs, what the stage needs and what it gives
(:mod:`.conditions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from .. import logging
from ..compile_records import timed
from . import config
from .conditions import check, verify
from .errors import Unsupported
from .layout.device_ir import Plan
from .layout.fold_order import keep_fold_orders
from .layout.insert_restickify import insert_restickify
from .layout.lift_ops import lift_ops
from .layout.propagate_layouts import propagate_layouts
from .passes.build_specs import build_specs
from .passes.cast_gathered import cast_gathered
from .passes.coarse_tile import coarse_tile
from .passes.dead_code import dead_code
from .passes.elide_copies import elide_copies
from .passes.forward_copies import forward_copies
from .passes.name_dims import name_dims
from .passes.resolve_aliases import resolve_aliases
from .passes.separate_overlaps import separate_overlaps
from .planning.choose_layouts import choose_layouts
from .planning.divide_work import divide_work
from .planning.plan_memory import plan_memory
from .planning.plan_scratchpad import plan_scratchpad
from .planning.tile_chains import tile_chains
from .planning.tile_products import tile_products


@dataclass(frozen=True)
class When:
    """The settings under which a stage runs."""

    text: str
    holds: Callable[[], bool]


ALWAYS = When("always", lambda: True)
TOGETHER = When("planned together", lambda: config.planning == "together")
IN_LX = When("LX is planned", lambda: config.lx_planning)
TOGETHER_IN_LX = When("planned together, in LX", lambda: TOGETHER.holds() and IN_LX.holds())


@dataclass(frozen=True)
class LoopPass:
    """A function of the kernel in loop IR. ``needs`` and ``gives`` name conditions (:mod:`.conditions`)."""

    run: Callable[[Any], None]
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    when: When = ALWAYS
    name: str = ""

    def apply(self, plan: Plan) -> Plan:
        self.run(plan.kernel)
        return plan


@dataclass(frozen=True)
class PlanPass(LoopPass):
    """A function of the whole plan."""

    def apply(self, plan: Plan) -> Plan:
        self.run(plan)
        return plan


@dataclass(frozen=True)
class Exploration:
    """``plans`` makes alternatives of a plan, and ``stages`` run on each of them."""

    plans: Callable[[Plan], Iterable[Plan]]
    stages: tuple[Stage, ...]
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    when: When = ALWAYS
    name: str = ""

    def alternatives(self, plan: Plan) -> Iterable[Plan]:
        return self.plans(plan) if self.when.holds() else (plan,)

    def apply(self, plan: Plan) -> Plan:
        raise NotImplementedError


@dataclass(frozen=True)
class FirstPossible(Exploration):
    """Goes on with the first alternative that no stage refuses. The last one is the kernel as it was."""

    def apply(self, plan: Plan) -> Plan:
        refusal = Unsupported("no plan")
        for each in self.alternatives(plan):
            try:
                return run(each, self.stages)
            except Unsupported as reason:
                refusal = reason
        raise refusal


@dataclass(frozen=True)
class Fastest(Exploration):
    """Goes on with the alternative that the planner expects to be fastest. Those that a stage of ``may_refuse`` refuses
    are dropped; if all are, the refusal of the first is raised, which is the kernel as it was."""

    may_refuse: tuple[str, ...] = ()

    def apply(self, plan: Plan) -> Plan:
        possible: list[Plan] = []
        refusals: list[Unsupported] = []
        certain, refusable = self._parts()
        for each in self.alternatives(plan):
            each = run(each, certain)
            try:
                possible.append(run(each, refusable))
            except Unsupported as reason:
                refusals.append(reason)
        if not possible:
            raise refusals[0]
        return min(possible, key=lambda each: each.planned_us)

    def _parts(self) -> tuple[Sequence[Stage], Sequence[Stage]]:
        first = next((at for at, stage in enumerate(self.stages) if stage.name in self.may_refuse), len(self.stages))
        return self.stages[:first], self.stages[first:]


Stage = LoopPass | Exploration


def _named(*stages: Stage) -> tuple[Stage, ...]:
    """Stages are called as their functions are."""
    named = []
    for stage in stages:
        function = stage.run if isinstance(stage, LoopPass) else stage.plans
        named.append(stage if stage.name else replace(stage, name=function.__name__))
    return tuple(named)


PIPELINE: tuple[Stage, ...] = _named(
    PlanPass(resolve_aliases, gives=("no aliases",)),
    LoopPass(dead_code, gives=("no dead ops",)),
    LoopPass(elide_copies, needs=("no aliases",)),
    LoopPass(cast_gathered),
    LoopPass(forward_copies, gives=("no dead ops",), when=TOGETHER),
    LoopPass(separate_overlaps, needs=("no aliases",), gives=("no overlaps",)),
    LoopPass(name_dims),
    LoopPass(coarse_tile),
    FirstPossible(
        tile_chains,
        _named(
            PlanPass(tile_products, when=TOGETHER_IN_LX),
            PlanPass(propagate_layouts, gives=("layouts",)),
            PlanPass(keep_fold_orders, needs=("layouts",)),
            Fastest(
                choose_layouts,
                _named(
                    PlanPass(insert_restickify, needs=("layouts",), gives=("layouts",)),
                    PlanPass(lift_ops, needs=("layouts", "no overlaps"), gives=("device ops",)),
                    PlanPass(divide_work, needs=("device ops",), gives=("device ops", "divided")),
                ),
                may_refuse=("lift_ops", "divide_work"),
            ),
        ),
        when=TOGETHER_IN_LX,
        gives=("divided",),
    ),
    PlanPass(plan_scratchpad, needs=("divided",), gives=("divided",), when=IN_LX),
    PlanPass(plan_memory, needs=("divided",), gives=("placed",)),
    PlanPass(build_specs, needs=("placed", "device ops"), gives=("specs",)),
)


def run(plan: Plan, stages: Sequence[Stage] | None = None) -> Plan:
    """The plan after all stages, which may be another one than was given."""
    if config.verify and stages is None:
        verify(plan, "after lowering")
    for stage in PIPELINE if stages is None else stages:
        if isinstance(stage, LoopPass) and not stage.when.holds():
            continue
        if config.verify:
            check(plan, stage.needs, f"before {stage.name}")
        with timed(f"pass:{stage.name}"):
            plan = stage.apply(plan)
        if config.verify:
            if isinstance(stage, LoopPass):  # an exploration ends with a plan that its own stages have left
                verify(plan, f"after {stage.name}")
            check(plan, stage.gives, f"after {stage.name}")
        if isinstance(stage, LoopPass):
            logging.dump_pass(plan.kernel.name, stage.name, plan)
    return plan


def walk(stages: Sequence[Stage] | None = None, depth: int = 0) -> Iterator[tuple[int, Stage]]:
    """Every stage in order, and how deep it is inside explorations."""
    for stage in PIPELINE if stages is None else stages:
        yield depth, stage
        if isinstance(stage, Exploration):
            yield from walk(stage.stages, depth + 1)


@contextmanager
def replaced(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Inside, another function takes the place of the stage of this name."""
    global PIPELINE
    if all(stage.name != name for _, stage in walk()):
        raise KeyError(f"the pipeline has no stage {name!r}")
    before = PIPELINE
    PIPELINE = _with(PIPELINE, name, function)
    try:
        yield
    finally:
        PIPELINE = before


def insert(added: LoopPass, before: str = "", after: str = "") -> None:
    """Adds a pass before or after the stage of this name."""
    global PIPELINE
    if all(stage.name != (before or after) for _, stage in walk()):
        names = ", ".join(stage.name for _, stage in walk())
        raise ValueError(f"the pipeline has no stage {before or after!r}; it has {names}")
    PIPELINE = _inserted(PIPELINE, added, before, after)


def _inserted(stages: tuple[Stage, ...], added: LoopPass, before: str, after: str) -> tuple[Stage, ...]:
    found: list[Stage] = []
    for stage in stages:
        if isinstance(stage, Exploration):
            stage = replace(stage, stages=_inserted(stage.stages, added, before, after))
        found += [added] * (stage.name == before) + [stage] + [added] * (stage.name == after)
    return tuple(found)


def remove(function: Callable[..., Any]) -> None:
    """Takes out the passes that run this function."""
    global PIPELINE
    PIPELINE = _without(PIPELINE, function)


def _without(stages: tuple[Stage, ...], function: Callable[..., Any]) -> tuple[Stage, ...]:
    kept = [stage for stage in stages if isinstance(stage, Exploration) or stage.run is not function]
    return tuple(
        replace(stage, stages=_without(stage.stages, function)) if isinstance(stage, Exploration) else stage
        for stage in kept
    )


def _with(stages: tuple[Stage, ...], name: str, function: Callable[..., Any]) -> tuple[Stage, ...]:
    found: list[Stage] = []
    for stage in stages:
        if isinstance(stage, Exploration):
            stage = replace(stage, stages=_with(stage.stages, name, function))
            found.append(replace(stage, plans=function) if stage.name == name else stage)
        else:
            found.append(replace(stage, run=function) if stage.name == name else stage)
    return tuple(found)
