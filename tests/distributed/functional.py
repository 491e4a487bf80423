"""What ranks do in the tests of functional collectives: each is compared with its eager self, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as funcol

from .reference import on_card

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "all_reduce": lambda x: funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1,
    "all_reduce_of_input": lambda x: funcol.all_reduce(x, "avg", dist.group.WORLD) + x,
    "all_gather_rows": lambda x: funcol.all_gather_tensor(x + 1, 0, dist.group.WORLD) * 2,
    "all_gather_columns": lambda x: funcol.all_gather_tensor(x, 1, dist.group.WORLD).sum(0),
    "reduce_scatter": lambda x: funcol.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD) * 2,
    "reduce_scatter_columns": lambda x: funcol.reduce_scatter_tensor(x, "sum", 1, dist.group.WORLD) * 2,
    "broadcast": lambda x: funcol.broadcast(x.neg(), 1, dist.group.WORLD) + 1,
    "all_to_all": lambda x: funcol.all_to_all_single(x, None, None, dist.group.WORLD) - 1,
    "all_reduce_coalesced": lambda x: funcol.all_reduce_coalesced([x, x[:1] * 2], "max", dist.group.WORLD),
    "all_gather_coalesced": lambda x: funcol.all_gather_into_tensor_coalesced([x, x * 2], dist.group.WORLD),
    "reduce_scatter_coalesced": lambda x: funcol.reduce_scatter_tensor_coalesced(
        [x, x * 2], "sum", [0, 0], dist.group.WORLD
    ),
    "two_in_a_row": lambda x: funcol.all_reduce(
        funcol.all_reduce(x, "sum", dist.group.WORLD).relu(), "max", dist.group.WORLD
    ),
}


def equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(found, expected, strict=True))


def tensors(found: Any) -> list[torch.Tensor]:
    return [each * 1 for each in found] if isinstance(found, (list, tuple)) else [found]


def compiled_as_eager(name: str) -> bool:
    """Without a graph break, and without anything on the CPU."""
    program, x = PROGRAMS[name], on_card((4, 130), torch.float16, 7, dist.get_rank())
    expected = tensors(program(x))
    torch.compiler.reset()
    with torch.spyre.fallback("error"):
        found = tensors(torch.compile(program, fullgraph=True)(x))
    return len(found) == len(expected) and all(
        torch.equal(a.cpu(), b.cpu()) for a, b in zip(found, expected, strict=True)
    )


def in_place_of(shared: bool) -> bool:
    """Whether a sum is right whose addend is used by others too, or not."""
    x = on_card((512, 512), torch.float16, 7, dist.get_rank())

    def program(x: torch.Tensor) -> Any:
        y = x * 2
        total = funcol.all_reduce(y, "sum", dist.group.WORLD)
        return total + y if shared else total + 1

    expected = tensors(program(x))
    return equal(tensors(torch.compile(program, fullgraph=True)(x)), expected)


def overlap() -> tuple[float, float, float]:
    """Modelled microseconds of a sum with a product beside it, of the sum, and of the rest alone."""
    x, w = (on_card(size, torch.float16, 8, 0) for size in [(512, 1024), (1024, 4096)])
    v, u = (on_card(size, torch.float16, 9, 0) for size in [(512, 4096), (4096, 4096)])
    y = on_card((512, 4096), torch.float16, 9, 0)

    def beside(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        z = nn.functional.silu(v @ u)
        return funcol.all_reduce(x @ w, "sum", dist.group.WORLD) * 2 * z

    def alone(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return (x @ w) * 2 * nn.functional.silu(v @ u)

    torch.compiler.reset()
    together, rest = torch.compile(beside, fullgraph=True), torch.compile(alone, fullgraph=True)
    both = timed(lambda: together(x, w, v, u))
    return both, timed(lambda: dist.all_reduce(y)), timed(lambda: rest(x, w, v, u))


def timed(call: Callable[[], Any]) -> float:
    call()
    torch.spyre.synchronize()
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.spyre.synchronize()
    return start.elapsed_time(end) * 1000


class Block(nn.Module):
    """Two products divided by columns and rows, as tensor parallelism has them."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        share = hidden // dist.get_world_size()
        self.up, self.down = nn.Linear(hidden, share, bias=False), nn.Linear(share, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + funcol.all_reduce(self.down(nn.functional.silu(self.up(x))), "sum", dist.group.WORLD)


def sizes_that_change() -> bool:
    """One program for every number of rows."""
    torch.compiler.reset()
    torch.manual_seed(dist.get_rank())
    block = Block(128).half().to("spyre").eval()
    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    with torch.no_grad(), torch.spyre.fallback("error"):
        for rows in (3, 5, 64, 70):
            x = on_card((rows, 128), torch.float16, rows, 0)
            torch.testing.assert_close(compiled(x).cpu(), block(x).cpu(), rtol=1e-2, atol=1e-2)
    return True


def threads() -> bool:
    """Collectives of several groups, from a thread each."""
    import threading

    groups = [dist.new_group() for _ in range(3)]
    wrong = []

    def work(number: int) -> None:
        for i in range(20):
            x = torch.full((100,), float(number + i), device="spyre")
            dist.all_reduce(x, group=groups[number])
            if not torch.equal(x.cpu(), torch.full((100,), float((number + i) * dist.get_world_size()))):
                wrong.append((number, i))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    for group in groups:
        dist.destroy_process_group(group)
    return not wrong
