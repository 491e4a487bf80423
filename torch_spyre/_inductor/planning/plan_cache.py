"""Plans on disk, found by what the planner sees: the same ops in another kernel or process are not searched again.

A key has shapes, strides and which ops share which buffers, and no name, so that weights may be elsewhere and kernels
may have other names. Whole kernels are kept, and one layer of those that repeat layers, which then serves every depth.
What is found is checked before it is used, and a plan decides about time only: the worst that a wrong one can do is to
be slow. Plans lie beside the compiled kernels, ``SPYRE_KERNEL_CACHE=0`` switches both off.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter

from ...caching.location import directory
from ...caching.store import Store
from ...caching.version import compiler_version
from ...card import description
from ...ir.spyrecode import MANIFEST, Reader
from .. import config
from .divisions import Slices, divisions
from .optimality import Optimality
from .search_space import SearchSpace, repeated

FEWEST = 8  # ops: fewer are planned faster than they are found
BYTES = 64 << 20  # of all plans on disk


@dataclass
class Known:
    """Divisions of ops in a row, of others by their labels, and how good they are."""

    slices: list[Slices]
    around: dict[str, Slices] = field(default_factory=dict)
    optimality: Optimality = field(default_factory=Optimality)


def _decoded(file: Reader) -> Known:
    found = json.loads(file(MANIFEST, BYTES))
    try:
        around = {str(label): _slices(given) for label, given in found["around"].items()}
        optimality = Optimality(**found["optimality"])
        if not isinstance(optimality.status, str) or not isinstance(optimality.bound_us, float | int):
            raise TypeError(f"no optimality: {optimality}")
        return Known([_slices(given) for given in found["slices"]], around, optimality)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no plan: {error!r}") from error


def _slices(given: object) -> Slices:
    if not isinstance(given, list) or not all(type(each) is int for each in given):
        raise TypeError(f"no division of an op: {given!r}")
    return tuple(given)


def _encoded(known: Known) -> dict[str, bytes]:
    return {MANIFEST: json.dumps(asdict(known)).encode()}


PLANS: Store[Known] = Store("plan cache", "plans", _decoded, _encoded, lambda: BYTES)


class PlanCache:
    """The plans on disk for one search space, whose ops are divided as in ``start``."""

    def __init__(self, space: SearchSpace, start: Sequence[Slices]) -> None:
        self.space, self.start = space, start
        worth_it = len(space.ops) - len(space.fixed) >= FEWEST
        self.root = directory() if worth_it else None
        self.layer = range(0)
        if self.root is not None:
            self.labels = [self._label(at) for at in range(len(space.ops))]
            self.repeats = repeated(self.labels, fewest=1.5)
            self.layer = self._middle_layer()

    def whole(self) -> tuple[list[Slices], Optimality] | None:
        """The plan of the whole kernel."""
        known = PLANS.find(self.root, self._whole_key()) if self.root is not None else None
        return (known.slices, known.optimality) if known is not None and self._valid(known.slices) else None

    def layers(self) -> tuple[list[Slices], set[int]] | None:
        """Every layer planned as it was in another kernel, so are ops around them that it had; which ops these are."""
        known = PLANS.find(self.root, self._layer_key()) if self.root is not None and self.layer else None
        if known is None or len(known.slices) != len(self.layer):
            return None
        planned, begin, end = list(self.start), self.repeats[0], self.repeats[2]
        found = {at for at in range(len(planned)) if begin <= at < end or self.labels[at] in known.around}
        for at in found:
            inside = begin <= at < end
            layer = known.slices[(at - self.layer.start) % len(self.layer)]
            planned[at] = layer if inside else known.around[self.labels[at]]
        return (planned, found) if self._valid(planned) else None

    def keep(self, slices: Sequence[Slices], optimality: Optimality) -> None:
        if self.root is None:
            return
        PLANS.keep(self.root, self._whole_key(), Known(list(slices), optimality=optimality))
        if self.layer:
            layer = [slices[at] for at in self.layer]
            begin, _, end = self.repeats
            outside = (at for at in range(len(slices)) if not begin <= at < end)
            PLANS.keep(self.root, self._layer_key(), Known(layer, {self.labels[at]: slices[at] for at in outside}))

    def _label(self, at: int) -> str:
        """Of equal ops, however far they are from what they share with others: where layers repeat, so do these."""
        fixed = self.start[at] if at in self.space.fixed else None
        return hashlib.sha256(repr((self.space.keys[at], self.space.iterations[at], fixed)).encode()).hexdigest()

    def _middle_layer(self) -> range:
        """A layer in the middle; which of its ops is the first does not depend on the kernel around."""
        begin, period, end = self.repeats
        cycle = self.labels[begin : begin + period]
        rotation = min(range(period), key=lambda first: cycle[first:] + cycle[:first], default=0)
        whole = (end - begin - rotation) // period if period >= FEWEST else 0
        start = begin + rotation + (whole - 1) // 2 * period
        return range(start, start + period) if whole > 0 else range(0)

    def _whole_key(self) -> str:
        return self._key(range(len(self.start)), *self.start)

    def _layer_key(self) -> str:
        return self._key(self.layer)

    def _key(self, inside: range, *more: object) -> str:
        """Hash of all that the plan of these ops follows from; of other ops only whether they share something."""
        parts = [
            ("ops", *(self.labels[at] for at in inside)),
            ("shared", *(self._sharing(at, inside) for at in inside)),
            ("room", self.space.budget, self.space.plan.cores, self.space.plan.span),
            ("hardware", *sorted(description.constants().items())),
            ("planner", compiler_version(), config.solver, config.solver_seconds),
            ("more", *more),
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def _sharing(self, at: int, inside: range) -> list[object]:
        found: list[object] = []
        for name, position in sorted(self.space.shared[at], key=itemgetter(1)):
            uses = self.space.uses[name]
            near = [(use.at - inside.start, use.position, use.writes) for use in uses if use.at in inside]
            found.append((position, name in self.space.clones, near, len(near) < len(uses)))
        return found

    def _valid(self, slices: Sequence[Slices]) -> bool:
        """Whether the ops can be divided so."""
        possible: dict[object, set[Slices]] = {}
        if len(slices) != len(self.start):
            return False
        for at, mine in enumerate(slices):
            if mine == self.start[at]:
                continue
            key = self.space.keys[at]
            if key not in possible:
                possible[key] = set(divisions(self.space.plan, self.space.ops[at], any_number=True))
            if at in self.space.fixed or mine not in possible[key]:
                return False
        return True
