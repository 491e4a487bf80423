"""The order of a kernel's steps: its bundle, loops written out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..ir.bundle import Execute, For


@dataclass(frozen=True)
class Execution:
    """One run of a file."""

    file: str
    moved: dict[int, int]  # bytes by which loops have moved each of its tensors
    turn: bool = False  # it begins another turn of a loop


def unrolled(body: Sequence[Execute | For], at: Mapping[str, int] | None = None) -> Iterator[Execution]:
    """Every execution in order."""
    at = at or {}
    for each in body:
        if isinstance(each, Execute):
            moved = {lds: sum(step * at[symbol] for symbol, step in moves) for lds, moves in each.moves}
            yield Execution(each.file, moved)
            continue
        for i in range(each.count):
            for position, execution in enumerate(unrolled(each.body, {**at, each.symbol: i})):
                yield replace(execution, turn=True) if i and not position else execution
