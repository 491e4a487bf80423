"""Verification of the IRs that passes rewrite: tables of rules, every rule a sentence and a check.

``loop_ir/verify.py`` has the rules of loop ops, ``layout/verify.py`` those of layouts and device ops,
``planning/verify.py`` those of cores and memory. The pipeline checks them after every stage with
``TORCH_SPYRE_VERIFY=1``. They are about the compiler itself: a user's program cannot break one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any


class InvalidIR(AssertionError):
    """A pass left something that breaks a rule. The message names kernel, pass, op, line of the program and rule."""


@dataclass(frozen=True)
class Rule:
    """``faults`` gives a sentence for everything that breaks the rule. It may count on the rules before it."""

    text: str
    faults: Callable[..., Iterator[str]]


def check(where: str, rules: Iterable[Rule], *subject: Any) -> None:
    """Raises InvalidIR for the first fault of a subject. ``where``: the kernel and the place in the pipeline."""
    for rule in rules:
        for fault in rule.faults(*subject):
            raise InvalidIR(f"{where}: {fault}; the rule: {rule.text}")


class Verified:
    """What has passed: most stages change few parts of a plan, and only these are checked again."""

    def __init__(self) -> None:
        self._facts: dict[
            int, tuple[object, object]
        ] = {}  # by id of a part, which is kept so that the id stays its own

    def is_new(self, part: object, facts: object) -> bool:
        """Whether a part differs from when this was last asked. ``facts``: all of it that rules look at."""
        before = self._facts.get(id(part))
        if before is not None and before[1] == facts:
            return False
        self._facts[id(part)] = (part, facts)
        return True
