"""What ranks do in the tests of collectives. Each compares with what it computes alone, and returns what differs."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from .reference import folded, on_card, reduce_op, same

SHAPES = ((), (1,), (0,), (63,), (64, 65), (3, 5, 70), (33, 100, 64))


def world() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def inputs(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    return [on_card(shape, dtype, seed, rank) for rank in range(dist.get_world_size())]


def all_reduce(shape: tuple[int, ...], dtype: torch.dtype, op: str) -> bool:
    rank, _ = world()
    given = inputs(shape, dtype, 1)
    found = given[rank].clone()
    dist.all_reduce(found, reduce_op(op))
    return same(found, folded(given, op))


def reduce(shape: tuple[int, ...], dtype: torch.dtype, op: str, root: int) -> bool:
    rank, _ = world()
    given = inputs(shape, dtype, 2)
    found = given[rank].clone()
    dist.reduce(found, root, reduce_op(op))
    return same(found, folded(given, op) if rank == root else given[rank])


def broadcast(shape: tuple[int, ...], dtype: torch.dtype, root: int) -> bool:
    rank, _ = world()
    given = inputs(shape, dtype, 3)
    found = given[rank].clone()
    dist.broadcast(found, root)
    return same(found, given[root])


def all_gather(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    rank, size = world()
    given = inputs(shape, dtype, 4)
    found = [torch.empty_like(given[0]) for _ in range(size)]
    dist.all_gather(found, given[rank])
    if not all(map(same, found, given)):
        return False
    flat = torch.empty(size * given[0].numel(), dtype=dtype, device="spyre")
    dist.all_gather_into_tensor(flat, given[rank])
    return same(flat, torch.cat([each.reshape(-1) for each in given]))


def gather_and_scatter(shape: tuple[int, ...], dtype: torch.dtype, root: int) -> bool:
    rank, size = world()
    given = inputs(shape, dtype, 5)
    found = [torch.empty_like(given[0]) for _ in range(size)] if rank == root else None
    dist.gather(given[rank], found, root)
    if found is not None and not all(map(same, found, given)):
        return False
    mine = torch.empty_like(given[0])
    dist.scatter(mine, given if rank == root else None, root)
    return same(mine, given[rank])


def reduce_scatter(shape: tuple[int, ...], dtype: torch.dtype, op: str) -> bool:
    rank, size = world()
    given = [inputs(shape, dtype, 6 + part) for part in range(size)]  # by part, then by rank
    mine = torch.empty_like(given[0][0])
    dist.reduce_scatter(mine, [part[rank] for part in given], reduce_op(op))
    expected = folded(given[rank], op)
    if not same(mine, expected):
        return False
    mine = torch.empty_like(given[0][0]).reshape(-1)
    dist.reduce_scatter_tensor(mine, torch.cat([part[rank].reshape(-1) for part in given]), reduce_op(op))
    return same(mine, expected.reshape(-1))


def all_to_all(rows: int, dtype: torch.dtype) -> bool:
    """Uneven: rank r sends rows + r + s to rank s."""
    rank, size = world()

    def sent(source: int, target: int) -> torch.Tensor:
        return on_card((rows + source + target, 3), dtype, 20 + target, source)

    out = [sent(rank, target) for target in range(size)]
    found = [torch.empty_like(sent(source, rank)) for source in range(size)]
    dist.all_to_all(found, out)
    if not all(same(found[source], sent(source, rank)) for source in range(size)):
        return False
    into = torch.empty_like(torch.cat(found))
    splits = [len(each) for each in found], [len(each) for each in out]
    dist.all_to_all_single(into, torch.cat(out), *splits)
    return same(into, torch.cat(found))


def messages(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Round the ring, with tags that arrive in another order than they are asked for."""
    rank, size = world()
    right, left = (rank + 1) % size, (rank - 1) % size
    first, second = on_card(shape, dtype, 30, rank), on_card(shape, dtype, 31, rank)
    found = torch.empty_like(first), torch.empty_like(second)
    works = [dist.irecv(found[1], left, tag=8), dist.irecv(found[0], left, tag=7)]
    works += [dist.isend(first, right, tag=7), dist.isend(second, right, tag=8)]
    for work in works:
        work.wait()
    return same(found[0], on_card(shape, dtype, 30, left)) and same(found[1], on_card(shape, dtype, 31, left))


def rows_of_messages() -> list[dict[str, Any]]:
    """Rows of the card in a profile of two messages from the first rank to the second."""
    parts = [torch.ones(512, 1024, dtype=torch.float16, device="spyre") for _ in range(2)]
    dist.barrier()
    call = dist.isend if dist.get_rank() == 0 else dist.irecv
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as found:
        for work in [call(part, 1 - dist.get_rank()) for part in parts]:
            work.wait()
        torch.spyre.synchronize()
    with tempfile.TemporaryDirectory() as directory:
        found.export_chrome_trace(f"{directory}/trace.json")
        events = json.loads(Path(f"{directory}/trace.json").read_text())["traceEvents"]
    return sorted((each for each in events if "coll_group" in each.get("args", {})), key=lambda each: each["ts"])
