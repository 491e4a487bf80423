"""A case: an input of one kind, damaged in a way that follows from a number; and the file it is saved in."""

from __future__ import annotations

import base64
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutation import mutators

# How many of a hundred cases are of each kind: what parses most has most.
SHARES = {
    "program": 25,
    "timing": 5,
    "layout": 6,
    "superdsc": 19,
    "bundle": 13,
    "spyrecode": 11,
    "capture": 5,
    "kernels": 4,
    "plans": 2,
    "model": 2,
    "ktir": 8,
}


@dataclass(frozen=True)
class Case:
    kind: str
    number: int
    input: Any


def kind_of(number: int) -> str:
    """The kinds take turns, spread evenly."""
    at = number * 61 % 100  # 61 and 100 have no divisor in common: a hundred cases have their shares exactly
    for kind, share in SHARES.items():
        if at < share:
            return kind
        at -= share
    raise AssertionError("the shares are not a hundred")


@contextmanager
def deep_stack() -> Iterator[None]:
    """For our own walks through what is nested deeply; what is tested has the usual stack."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(8 * mutators.DEPTH)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def make(corpus: dict[str, list[Any]], kind: str, seed: int, number: int) -> Case:
    rng = random.Random(f"{kind} {seed} {number}")
    chosen = rng.choice(corpus[kind])
    with deep_stack():
        return Case(kind, number, mutators.mutated(rng, chosen, corpus[kind]))


def save(path: Path, case: Case, kind: str, what: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"kind": case.kind, "number": case.number, "failure": kind, "what": what, "input": case.input}
    path.write_text(dumps(facts))


def load(path: Path) -> Case:
    facts = loads(path.read_text())
    return Case(facts["kind"], facts["number"], facts["input"])


def dumps(value: Any) -> str:
    """JSON, with bytes."""
    with deep_stack():
        return json.dumps(_plain(value))


def loads(text: str) -> Any:
    with deep_stack():
        return json.loads(text, object_hook=_restored)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _restored(found: dict[str, Any]) -> Any:
    return base64.b64decode(found["base64"]) if found.keys() == {"base64"} else found
