"""Which cases of a parametrised test run every time, and which only at night.

`make test` runs, of a test over several parameters, as few cases as have every value of each parameter (or, with
``pairs``, every two values of two parameters) in one of them. The choice follows from the order of the cases alone, so
it is the same in every process and every run. The others are marked slow: `make nightly` runs them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations


def covering(cases: Sequence[Mapping[str, Hashable]], pairs: bool = False) -> list[int]:
    """Positions of cases that have between them all values (or pairs of values) that any of the cases has."""

    def facts(case: Mapping[str, Hashable]) -> Iterable[Hashable]:
        return combinations(sorted(case.items()), 2) if pairs and len(case) > 1 else case.items()

    found = [set(facts(case)) for case in cases]
    missing = set().union(*found)
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda i: (len(found[i] & missing), -i))
        missing -= found[best]
        chosen.append(best)
    return sorted(chosen)
