"""Random collectives: the same plan on all ranks, from a seed, and what one process computes of it."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist

from .reference import folded, on_card, reduce_op, same

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64, torch.uint8, torch.bool)
SHAPES = ((), (1,), (0, 3), (63,), (64, 65), (5, 2, 70), (300, 129))
KINDS = ("all_reduce", "reduce", "broadcast", "all_gather", "into_tensor", "reduce_scatter", "all_to_all", "message")


def reductions(dtype: torch.dtype) -> list[str]:
    if dtype == torch.bool:
        return ["SUM", "PRODUCT", "BAND", "BOR", "BXOR"]
    common = ["SUM", "MIN", "MAX", "AVG"]
    return common if dtype.is_floating_point else [*common, "BAND", "BOR", "BXOR"]


def laid_out(value: torch.Tensor, how: str) -> torch.Tensor:
    """A tensor of these values with other strides or a place inside of a larger one."""
    if how == "strided" and value.dim() >= 2:
        return value.transpose(0, -1).contiguous().transpose(0, -1)
    if how == "inside" and value.dim() >= 1:
        around = torch.zeros((value.shape[0] + 3, *value.shape[1:]), dtype=value.dtype, device=value.device)
        inside = around[2 : 2 + value.shape[0]]
        inside.copy_(value)
        return inside
    return value


class Collective:
    """One of the plan; ``members`` are global ranks."""

    def __init__(self, number: int, choice: random.Random, groups: list[tuple[Any, list[int]]]) -> None:
        self.group, self.members = choice.choice(groups)
        self.kind = choice.choice(KINDS)
        self.shape = choice.choice(SHAPES)
        self.dtype = choice.choice(DTYPES)
        self.op = choice.choice(reductions(self.dtype))
        self.root = choice.choice(self.members)
        self.layout = choice.choice(["plain", "strided", "inside"])
        self.is_async = choice.random() < 0.5
        self.seed = 50 + 10 * number
        self.text = f"{number}: {self.kind} {self.op} {self.dtype} {self.shape} {self.layout} of {self.members}"

    def given(self, member: int, part: int = 0) -> torch.Tensor:
        return on_card(self.shape, self.dtype, self.seed + part, member)

    def output(self) -> torch.Tensor:
        return laid_out(torch.zeros(self.shape, dtype=self.dtype, device="spyre"), self.layout)

    def start(self, rank: int) -> tuple[Any, list[tuple[torch.Tensor, Any]]]:
        """The work, if it is asynchronous, and pairs of a tensor and what computes the values it gets."""
        return getattr(self, self.kind)(rank)

    def _options(self) -> dict[str, Any]:
        return {"group": self.group, "async_op": self.is_async}

    def _folded(self, part: int = 0) -> torch.Tensor:
        return folded([self.given(member, part) for member in self.members], self.op)

    def all_reduce(self, rank: int) -> Any:
        value = laid_out(self.given(rank), self.layout)
        work = dist.all_reduce(value, reduce_op(self.op), **self._options())
        return work, [(value, self._folded)]

    def reduce(self, rank: int) -> Any:
        value = laid_out(self.given(rank), self.layout)
        work = dist.reduce(value, self.root, reduce_op(self.op), **self._options())
        return work, [(value, self._folded if rank == self.root else lambda: self.given(rank))]

    def broadcast(self, rank: int) -> Any:
        value = laid_out(self.given(rank), self.layout)
        work = dist.broadcast(value, self.root, **self._options())
        return work, [(value, lambda: self.given(self.root))]

    def all_gather(self, rank: int) -> Any:
        outputs = [self.output() for _ in self.members]
        work = dist.all_gather(outputs, laid_out(self.given(rank), self.layout), **self._options())
        return work, [
            (output, lambda member=member: self.given(member))
            for output, member in zip(outputs, self.members, strict=True)
        ]

    def into_tensor(self, rank: int) -> Any:
        output = torch.zeros((len(self.members), *self.shape), dtype=self.dtype, device="spyre")
        given = laid_out(self.given(rank), self.layout)
        work = dist.all_gather_into_tensor(output, given[None], **self._options())
        return work, [(output, lambda: torch.stack([self.given(member) for member in self.members]))]

    def reduce_scatter(self, rank: int) -> Any:
        output = self.output()
        parts = [laid_out(self.given(rank, part), self.layout) for part in range(len(self.members))]
        work = dist.reduce_scatter(output, parts, reduce_op(self.op), **self._options())
        return work, [(output, lambda: self._folded(self.members.index(rank)))]

    def all_to_all(self, rank: int) -> Any:
        outputs = [self.output() for _ in self.members]
        inputs = [laid_out(self.given(rank, part), self.layout) for part in range(len(self.members))]
        work = dist.all_to_all(outputs, inputs, **self._options())
        place = self.members.index(rank)
        return work, [
            (output, lambda member=member: self.given(member, place))
            for output, member in zip(outputs, self.members, strict=True)
        ]

    def message(self, rank: int) -> Any:
        place, size = self.members.index(rank), len(self.members)
        right, left = self.members[(place + 1) % size], self.members[place - 1]
        output = self.output()
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, laid_out(self.given(rank), self.layout), right, self.group),
                dist.P2POp(dist.irecv, output, left, self.group),
            ]
        )
        return works, [(output, lambda: self.given(left))]


def groups_of(size: int) -> list[tuple[Any, list[int]]]:
    """The world and, of more than two ranks, groups that overlap."""
    members = [list(range(size))] if size < 4 else [list(range(size)), [0, 1], [1, 2, 3], [0, 2], [3, 1]]
    return [(dist.new_group(each), sorted(each)) for each in members]


def run(seed: int, count: int) -> list[str]:
    """What differs from what one process computes, with groups of the program's own."""
    groups = groups_of(dist.get_world_size())
    differing = carry_out(seed, count, groups)
    for group, members in groups:
        if dist.get_rank() in members:
            dist.destroy_process_group(group)
    return differing


def carry_out(seed: int, count: int, groups: list[tuple[Any, list[int]]]) -> list[str]:
    """A few collectives are under way at a time."""
    rank = dist.get_rank()
    choice = random.Random(seed)
    differing: list[str] = []
    under_way: list[tuple[Collective, Any, Any]] = []

    def finish() -> None:
        for collective, works, results in under_way:
            for work in works if isinstance(works, list) else [works]:
                if work is not None:
                    work.wait()
            for found, expected in results:
                if not same(found, expected()):
                    differing.append(collective.text)
        under_way.clear()

    for number in range(count):
        collective = Collective(number, choice, groups)
        if rank in collective.members:
            under_way.append((collective, *collective.start(rank)))
        if choice.random() < 0.2:
            finish()
    finish()
    return differing
