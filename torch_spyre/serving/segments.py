"""A step of vLLM as programs: what one run of the model takes of it, in few shapes."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Segment:
    """Requests that run together, each with up to ``queries`` tokens, in a program for ``rows`` of them."""

    requests: tuple[int, ...]
    rows: int
    queries: int


@dataclasses.dataclass(frozen=True)
class Ladder:
    """The sizes that programs exist for."""

    rows: tuple[int, ...]  # requests of a step of decodes
    decode: int  # tokens of each of these: one and what is speculated
    chunk: tuple[int, ...]  # tokens of a prompt

    @staticmethod
    def of(sequences: int, tokens: int, speculated: int) -> Ladder:
        decode = 1 + speculated
        return Ladder(_steps(1, sequences, 4), decode, _steps(min(32, tokens), tokens, 4))

    def split(self, lengths: np.ndarray) -> list[Segment]:
        """Decodes run as one, every part of a prompt alone."""
        decodes = tuple(i for i, n in enumerate(lengths) if n <= self.decode)
        found = []
        if decodes:
            found.append(Segment(decodes, fitting(self.rows, len(decodes)), self.decode))
        for i, n in enumerate(lengths):
            if n > self.decode:
                found.append(Segment((i,), 1, fitting(self.chunk, int(n))))
        return found

    def shapes(self) -> list[tuple[int, int]]:
        """Rows and queries of every program."""
        return [(rows, self.decode) for rows in self.rows] + [(1, n) for n in self.chunk if n > self.decode]


def _steps(first: int, last: int, factor: int) -> tuple[int, ...]:
    found = [first]
    while found[-1] < last:
        found.append(min(last, found[-1] * factor))
    return tuple(found)


def fitting(sizes: tuple[int, ...], wanted: int) -> int:
    """The smallest size that is enough."""
    return next(size for size in sizes if size >= wanted)
