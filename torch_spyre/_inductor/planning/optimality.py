"""How good a plan is known to be, and how a kernel's description says it."""

from __future__ import annotations

from dataclasses import dataclass

from ...kernel_types import PlannerReport

# The plans that a proof covers: all of these ops in these layouts, or only those that divide ops as some candidates do,
# that divide equal layers alike, or that move buffers over the ring only between some. A search proves nothing.
LIMITS = ("all", "candidates", "layers alike", "ring between candidates")


@dataclass(frozen=True)
class Optimality:
    """No plan within the scope is faster than the bound."""

    status: str = "searched"
    bound_us: float = 0.0
    scope: str = ""

    def __post_init__(self) -> None:
        if self.scope and not set(self.scope.split(", ")) <= set(LIMITS):
            raise ValueError(f"scope {self.scope!r}: expected some of {LIMITS}")


def report(objective_us: float, known: Optimality, bound_us: float, seconds: float) -> PlannerReport:
    """``bound_us`` holds for all plans and is 0 if it was not computed; it serves where nothing better is proved."""
    best = known.bound_us if known.scope else bound_us
    return {
        "status": known.status,
        "scope": known.scope or ("all" if bound_us else ""),
        "objective_us": objective_us,
        "best_bound_us": best,
        "gap": objective_us / best - 1 if best else None,
        "seconds": seconds,
    }
