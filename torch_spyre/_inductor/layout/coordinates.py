"""Device coordinates: how a layout places host elements, and how an operand walks over a tensor on the card."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..._C import SpyreTensorLayout


@dataclass(frozen=True)
class Level:
    """One device dimension: ``unit`` host elements per step. A stick level covers tile and lane dimension at once."""

    unit: int
    extent: int
    dim: int
    stick: int = 0  # elements per stick where this level is the stick pair, else 0
    tile_dim: int = -1  # of a stick level; -1: the tensor has one stick along it


@dataclass(frozen=True)
class Placement:
    """How a layout takes a host offset apart: levels with decreasing units, and dimensions that repeat the data."""

    levels: tuple[Level, ...]
    replicas: tuple[Level, ...]
    rank: int

    def with_stick_pair(self, elements: int) -> Placement | None:
        """Tile and lane level as one; None if nothing lies along the sticks."""
        lane = next((level for level in self.levels if level.dim == self.rank - 1), None)
        if lane is None:
            return None
        # A dimension whose steps are shorter than a stick leaves no room for a second one.
        next_unit = min((level.unit for level in self.levels if level.unit > lane.unit), default=0)
        tile = next((level for level in self.levels if level.unit == next_unit == lane.unit * elements), None)
        count = tile.extent if tile else 1
        pair = Level(lane.unit, count * elements, lane.dim, elements, tile.dim if tile else -1)
        rest = tuple(level for level in self.levels if level not in (lane, tile))
        levels = tuple(sorted((*rest, pair), key=lambda level: -level.unit))
        return Placement(levels, self.replicas, self.rank)


def placement(layout: SpyreTensorLayout) -> Placement:
    """The levels of a layout."""
    sizes, units = layout.device_size, layout.stride_map
    levels = [Level(u, n, i) for i, (n, u) in enumerate(zip(sizes, units, strict=True)) if n > 1 and u > 0]
    replicas = [Level(0, n, i) for i, (n, u) in enumerate(zip(sizes, units, strict=True)) if n > 1 and u == 0]
    return Placement(tuple(sorted(levels, key=lambda level: -level.unit)), tuple(replicas), len(sizes))


@dataclass(frozen=True)
class Operand:
    """One operand to be lifted: levels to place it on, its host strides along the loops, its host offset.

    ``stick_loop`` is the loop that has to stay whole along the operand's sticks. ``jumps`` has (host stride, extent)
    per index tensor: what an index adds has to stay on one level. ``still`` is a device dimension of one, for indices
    that have nowhere to go.
    """

    levels: tuple[Level, ...]
    rank: int
    strides: tuple[int, ...]
    offset: int
    jumps: tuple[tuple[int, int], ...] = ()
    stick_loop: int = -1
    still: int = -1


@dataclass
class Coordinates:
    """Device coordinates of one operand: ``constant[dim] + dot(point, steps[loop][dim])``.

    ``stick`` is the loop that runs along the operand's sticks, -1 if none does: its step stands on the lane dimension
    and counts elements. ``jumps[j]`` is (dim, step, whether dim is a stick level) of index j; on a stick level it, too,
    counts elements along the sticks: one, where no loop does, or whole sticks.
    """

    constant: list[int]
    steps: list[list[int]]
    stick: int = -1
    elements: int = 0
    tile_dim: int = -1
    jumps: list[tuple[int, int, bool]] = field(default_factory=list)
    tile_steps: list[list[int]] = field(default_factory=list)  # steps along the loops around the op

    def __str__(self) -> str:
        tiles = f" tiles {self.tile_steps}" if self.tile_steps else ""
        return f"{self.constant}+{self.steps}{tiles}" + "".join(
            f" jumps {step} along {dim}" for dim, step, _ in self.jumps
        )

    def inside(self, across: tuple[int, ...]) -> list[list[int]]:
        """The steps within one core's LX. A loop that moves ``across`` cores moves nowhere inside one."""
        return [
            [0] * len(row) if cores else row
            for row, cores in zip(self.steps, across or [0] * len(self.steps), strict=True)
        ]


@dataclass
class Piece:
    """A part of an iteration space: its loops, the op's loop that each is part of, and one Coordinates per operand."""

    counts: list[int]
    origins: list[int]
    operands: list[Coordinates]
