"""A step of vLLM as programs: what one run of the model takes of it, in few sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

FACTOR = 4  # between sizes: what is padded is at most three quarters, and mostly far less


@dataclasses.dataclass(frozen=True)
class Segment:
    """Requests that run together, in a program for ``tokens`` of ``rows`` requests."""

    requests: tuple[int, ...]
    rows: int
    tokens: int
    starts: Any  # [rows + 1]: where the tokens of each row begin in the program, and their end
    behind: int  # the most tokens of padding that a row has at its end

    def places(self, starts: Any) -> tuple[Any, Any]:
        """Where its tokens lie in the program, and where in the step, in which requests begin at ``starts``."""
        counts = [int(starts[request + 1] - starts[request]) for request in self.requests]
        at = [self.starts[row] + np.arange(count) for row, count in enumerate(counts)]
        of = [np.arange(starts[request], starts[request + 1]) for request in self.requests]
        return np.concatenate(at), np.concatenate(of)


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Programs for any mix of decodes and parts of prompts: a step is one of them."""

    rows: int
    tokens: tuple[int, ...]

    def split(self, lengths: Any) -> list[Segment]:
        starts = np.full(self.rows + 1, lengths.sum())
        starts[: len(lengths)] = np.cumsum(lengths) - lengths
        return [Segment(tuple(range(len(lengths))), self.rows, fitting(self.tokens, int(lengths.sum())), starts, 0)]

    def programs(self) -> list[Segment]:
        """One segment of each program, with no request in it."""
        return [Segment((), self.rows, tokens, np.zeros(self.rows + 1, np.int64), 0) for tokens in self.tokens]


@dataclasses.dataclass(frozen=True)
class Aligned:
    """Programs for rows of equally many tokens, as layers with states want them: all decodes of a step are one, and
    every part of a prompt is one."""

    rows: tuple[int, ...]
    decode: int  # tokens of each row of decodes
    chunk: tuple[int, ...]  # tokens of a part of a prompt

    def split(self, lengths: Any) -> list[Segment]:
        decodes = tuple(i for i, n in enumerate(lengths) if n <= self.decode)
        found = [_rows(decodes, fitting(self.rows, len(decodes)), self.decode)] if decodes else []
        parts = [(i, int(n)) for i, n in enumerate(lengths) if n > self.decode]
        return found + [_rows((i,), 1, fitting(self.chunk, n)) for i, n in parts]

    def programs(self) -> list[Segment]:
        parts = [n for n in self.chunk if n > self.decode]
        return [_rows((), n, self.decode) for n in self.rows] + [_rows((), 1, n) for n in parts]


def _rows(requests: tuple[int, ...], rows: int, tokens: int) -> Segment:
    return Segment(requests, rows, rows * tokens, np.arange(rows + 1) * tokens, tokens - 1)


def sizes(first: int, last: int) -> tuple[int, ...]:
    """From the first to the last, in steps by the same factor."""
    found = [min(first, last)]
    while found[-1] < last:
        found.append(min(last, found[-1] * FACTOR))
    return tuple(found)


def fitting(sizes: tuple[int, ...], wanted: int) -> int:
    """The smallest size that is enough."""
    return next(size for size in sizes if size >= wanted)
