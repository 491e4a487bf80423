"""Plans on disk, found by what the planner sees: the same ops in another kernel or process are not searched again.

A key has shapes, strides and who shares what with whom, and no name, so that weights may lie elsewhere and kernels be
called otherwise. Whole kernels are kept, and one layer of those that repeat layers, which then serves every depth.
What is found is checked before it is used, and a plan decides about time only: the worst that a wrong one can do is to
be slow. Plans lie beside the compiled kernels, ``SPYRE_KERNEL_CACHE=0`` switches both off.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...card import description
from ...execution.kernel_cache import directory
from ...execution.store import Store
from ...execution.version import compiler_version
from ...ir.spyrecode import MANIFEST
from .. import config
from .divisions import Slices, divisions
from .problem import Problem, repeated
from .proof import Proof

FEWEST = 8  # ops: fewer are planned faster than they are found
BYTES = 64 << 20  # of all plans on disk


def _read(path: Path) -> dict[str, Any]:
    found = json.loads((path / MANIFEST).read_text())
    try:
        return {"slices": [tuple(map(int, each)) for each in found["slices"]], "proof": Proof(**found["proof"])}
    except (KeyError, TypeError) as error:
        raise ValueError(f"no plan: {error}") from error


def _write(path: Path, found: dict[str, Any]) -> None:
    path.mkdir()
    (path / MANIFEST).write_text(json.dumps({"slices": found["slices"], "proof": asdict(found["proof"])}))


PLANS: Store[dict[str, Any]] = Store("plan memo", _read, _write, lambda: BYTES)


class Memo:
    """Of one problem, whose ops are divided as in ``start``."""

    def __init__(self, problem: Problem, start: Sequence[Slices]) -> None:
        self.problem, self.start = problem, start
        root = directory()
        worth_it = len(problem.ops) - len(problem.fixed) >= FEWEST
        self.root = root / "plans" if root is not None and worth_it else None
        self.repeats = (0, 0, 0)
        if self.root is not None:
            self.labels = [self._label(at) for at in range(len(problem.ops))]
            self.repeats = repeated(self.labels, fewest=2)
            self.whole_key = self._key(0, len(self.labels), *map(tuple, start))
        if self.repeats[1]:
            self.layer = self._layer()
            self.layer_key = self._key(self.layer, self.repeats[1])

    def whole(self) -> tuple[list[Slices], Proof] | None:
        """The plan of the whole kernel."""
        found = PLANS.find(self.root, self.whole_key) if self.root is not None else None
        if found is None or not self._valid(0, found["slices"], len(self.start)):
            return None
        return found["slices"], found["proof"]

    def layers(self) -> tuple[list[Slices], range] | None:
        """Every layer planned as it was in another kernel, and which ops these are."""
        begin, period, end = self.repeats
        found = PLANS.find(self.root, self.layer_key) if self.root is not None and period else None
        if found is None or not self._valid(self.layer, found["slices"], period):
            return None
        layer = found["slices"]
        planned = [
            layer[(at - self.layer) % period] if begin <= at < end else mine for at, mine in enumerate(self.start)
        ]
        return planned, range(begin, end)

    def keep(self, slices: Sequence[Slices], proof: Proof) -> None:
        if self.root is not None:
            PLANS.keep(self.root, self.whole_key, {"slices": slices, "proof": proof})
        if self.root is not None and self.repeats[1]:
            layer = slices[self.layer : self.layer + self.repeats[1]]
            PLANS.keep(self.root, self.layer_key, {"slices": layer, "proof": Proof()})

    def _label(self, at: int) -> str:
        """Of equal ops, however far they are from what they share with others: where layers repeat, so do these."""
        fixed = self.start[at] if at in self.problem.fixed else None
        return hashlib.sha256(repr((self.problem.keys[at], self.problem.turns[at], fixed)).encode()).hexdigest()

    def _layer(self) -> int:
        """Where a layer in the middle begins; which of its ops is the first does not depend on the kernel around."""
        begin, period, end = self.repeats
        turned = min(range(period), key=lambda first: self.labels[begin + first : begin + first + period])
        return begin + turned + (end - begin - turned - period) // period // 2 * period

    def _key(self, begin: int, count: int, *more: object) -> str:
        """Hash of all that the plan of these ops follows from; of other ops only whether they share something."""
        inside = range(begin, begin + count)
        parts = [
            ("ops", *self.labels[begin : begin + count]),
            ("shared", *(self._sharing(at, inside) for at in inside)),
            ("room", self.problem.budget, self.problem.plan.cores, self.problem.plan.span),
            ("hardware", *sorted(description.constants().items())),
            ("planner", compiler_version(), config.solver, config.solver_seconds),
            ("more", *more),
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def _sharing(self, at: int, inside: range) -> list[object]:
        found: list[object] = []
        for name, position in self.problem.shared[at]:
            uses = self.problem.uses[name]
            near = [(use.at - inside.start, use.position, use.writes) for use in uses if use.at in inside]
            found.append((position, name in self.problem.clones, near, len(near) < len(uses)))
        return found

    def _valid(self, begin: int, slices: Sequence[Slices], count: int) -> bool:
        """Whether the ops can be divided so."""
        checked: dict[object, set[Slices]] = {}
        if len(slices) != count:
            return False
        for at, mine in enumerate(slices, begin):
            if mine == self.start[at]:
                continue
            if at in self.problem.fixed:
                return False
            key = self.problem.keys[at]
            if key not in checked:
                checked[key] = set(divisions(self.problem.plan, self.problem.ops[at], any_number=True))
            if mine not in checked[key]:
                return False
        return True
