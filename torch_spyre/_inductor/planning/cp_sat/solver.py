"""Has the model solved, and reads the plan and its optimality back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ... import config
from ..divisions import Slices
from ..optimality import Optimality
from ..search_space import SearchSpace, Stay
from .candidates import PICOSECONDS, Candidates
from .choices import choices_of_ops
from .equal_layers import EqualLayers
from .model import Model
from .places import Places

WORKERS = 2


def solve(space: SearchSpace, slices: Sequence[Slices], stays: Mapping[str, Stay]) -> tuple[list[Slices], Optimality]:
    """Improves on ``slices``, under which the buffers ``stays`` stay in LX."""
    cp = _solver_module()
    layers = EqualLayers(space, slices)
    candidates = Candidates(layers, slices, stays)
    places = Places(candidates)
    model = Model(cp, candidates, places, choices_of_ops(candidates, places))
    model.begin_with(stays)
    solver = _solver(cp)
    status = solver.solve(model.solver_model)

    found = list(slices)
    if status in (cp.OPTIMAL, cp.FEASIBLE):
        chosen = model.chosen_divisions(solver)
        found = [chosen[layers.key(at)] for at in range(len(found))]
    limits = {
        "candidates": not (candidates.all_divisions and places.all_schemes),
        "layers alike": layers.period > 0,
        "ring between candidates": not places.all_pairs,
    }
    scope = ", ".join(limit for limit, holds in limits.items() if holds) or "all"
    if status == cp.INFEASIBLE:  # equal layers cannot be divided alike and be as fast as what is given
        return found, Optimality("optimal", candidates.given_us, scope)
    bound = min(solver.best_objective_bound, candidates.given_us * PICOSECONDS) - 1  # as sums are rounded
    return found, Optimality(solver.status_name(status).lower(), max(bound, 0) / PICOSECONDS, scope)


def _solver(cp: Any) -> Any:
    solver = cp.CpSolver()
    solver.parameters.num_workers = WORKERS
    solver.parameters.interleave_search = True  # with the limit below: the same every time
    solver.parameters.max_deterministic_time = config.solver_seconds
    return solver


def _solver_module() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ImportError(
            'SPYRE_SOLVER=exact needs OR-Tools: pip install "torch-spyre[solver]", or leave SPYRE_SOLVER at search'
        ) from error
    return cp_model
