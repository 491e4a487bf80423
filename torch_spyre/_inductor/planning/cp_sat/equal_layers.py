"""Equal layers: one op and one buffer stand for the equal ones of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from ..divisions import Slices
from ..liveness import Use
from ..search_space import SearchSpace, repeated

User = tuple[int, int]  # which op, which of its operands
OpKey = tuple[int, tuple[str, ...]]  # the op that stands for another, the buffers that stand for its shared operands


class EqualLayers:
    """``shared``: by op, the buffers that may stay in LX, with the operands that use them."""

    def __init__(self, space: SearchSpace, slices: Sequence[Slices]) -> None:
        self.space = space
        self.shared = [sorted(space.shared[at], key=itemgetter(1)) for at in range(len(slices))]
        labels = [self._label(at, slices) for at in range(len(slices))]
        self.begin, self.period, self.end = repeated(labels, fewest=3)
        self.buffers = self._buffers()  # by buffer: the one that stands for it

    def _label(self, at: int, slices: Sequence[Slices]) -> object:
        """Equal for ops that can be divided alike and share the same of their operands."""
        space = self.space
        shared = tuple((position, name in space.clones) for name, position in self.shared[at])
        return space.keys[at], slices[at] if at in space.fixed else None, shared

    def _buffers(self) -> dict[str, str]:
        """Buffers are equal if equal ops use them."""
        first: dict[object, str] = {}
        found = {}
        for name, uses in self.space.uses.items():
            key = (name in self.space.clones, *((*self.user(use), use.writes) for use in uses))
            found[name] = first.setdefault(key, name)
        return found

    def first(self, at: int) -> int:
        """The op that stands for this one."""
        if self.begin <= at < self.end:
            return self.begin + (at - self.begin) % self.period
        return at

    def user(self, use: Use) -> User:
        return self.first(use.at), use.position

    def key(self, at: int) -> OpKey:
        """Equal for ops of several layers that share equal buffers: they get one choice."""
        return self.first(at), tuple(self.buffers[name] for name, _ in self.shared[at])
