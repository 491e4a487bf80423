"""The order of a kernel's steps: its bundle, loops written out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..ir.bundle import Execute, For


def unrolled(
    body: Sequence[Execute | For], at: Mapping[str, int] | None = None
) -> Iterator[tuple[str, dict[int, int]]]:
    """Every execution in order: the file, and the bytes by which loops have moved each of its tensors."""
    at = at or {}
    for each in body:
        if isinstance(each, For):
            for i in range(each.count):
                yield from unrolled(each.body, {**at, each.symbol: i})
        else:
            yield (
                each.file,
                {lds: sum(step * at[symbol] for symbol, step in moves) for lds, moves in each.moves},
            )
