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


def chain(x: torch.Tensor, length: int = 3) -> torch.Tensor:
    for _ in range(length):
        x = funcol.all_reduce((x * 0.5).relu(), "sum", dist.group.WORLD) + x
    return x


def writes_its_argument(x: torch.Tensor) -> torch.Tensor:
    y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
    x.add_(y)
    return funcol.all_reduce(x, "max", dist.group.WORLD).sum()


def by_way_of_the_host(x: torch.Tensor) -> torch.Tensor:
    y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1
    return funcol.all_reduce(y.cpu().sin().to(x.device) + y, "sum", dist.group.WORLD) * 2


# What is joined into launch sequences: the program, and how many of them the host starts.
SEQUENCES: dict[str, tuple[Callable[[torch.Tensor], Any], int]] = {
    "chain": (chain, 1),
    "writes_its_argument": (writes_its_argument, 1),
    "by_way_of_the_host": (by_way_of_the_host, 2),
    "results_between": (lambda x: ((y := funcol.all_reduce(x + 1, "sum", dist.group.WORLD)), y * 2, (y * 3).t()), 1),
    "views": (lambda x: funcol.all_gather_tensor((x * 2)[1:3, 2:66], 0, dist.group.WORLD)[1:].t() + 1, 1),
    "view_of_result": (lambda x: [(y := funcol.all_reduce(x * 2, "sum", dist.group.WORLD))[1:], y + 1], 1),
    "coalesced": (lambda x: [y * 2 for y in funcol.all_reduce_coalesced([x + 1, x], "sum", dist.group.WORLD)], 1),
    "turned": (lambda x: funcol.all_reduce((x * 2).t(), "sum", dist.group.WORLD).t() + x, 1),
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


def in_sequences(name: str) -> tuple[bool, int, bool]:
    """Whether a program gives its eager results and leaves its argument alike, how often the host starts something,
    and whether values and modelled time are those of the same kernels and collectives, each started by itself."""
    from unittest.mock import patch

    from torch_spyre import _C
    from torch_spyre._inductor.fx import join_launches

    program, _ = SEQUENCES[name]

    def run(call: Callable[[torch.Tensor], Any]) -> tuple[list[torch.Tensor], float, int]:
        call(on_card((4, 130), torch.float16, 7, dist.get_rank()))
        dist.barrier()  # the ranks have compiled at times of their own
        x = on_card((4, 130), torch.float16, 7, dist.get_rank())
        stream, starts = torch.spyre.current_stream(), _C.launch_starts()
        torch.spyre.synchronize()
        before = stream.modelled_time()
        found = tensors(call(x))
        return [*found, x], round(stream.modelled_time() - before, 9), _C.launch_starts() - starts

    torch.compiler.reset()
    joined, time, starts = run(torch.compile(program, fullgraph=True))
    torch.compiler.reset()
    with (
        patch.object(join_launches._Run, "replace", lambda *_: None),
        torch._inductor.config.patch(force_disable_caches=True),
    ):
        apart, time_apart, _ = run(torch.compile(program, fullgraph=True))
    expected, _, _ = run(program)
    same = [a.stride() for a in joined] == [a.stride() for a in expected]
    return same and equal(joined, expected), starts, equal(joined, apart) and time == time_apart


def heard_of_a_chain() -> tuple[int, int, bool]:
    """Of how many kernels of one launch sequence listeners hear, and handlers, and whether these can run them."""
    from torch_spyre.execution.kernel import handled_by, run_kernel
    from torch_spyre.execution.launches import Launch, listening

    torch.compiler.reset()
    x = on_card((4, 130), torch.float16, 7, dist.get_rank())
    program = torch.compile(chain, fullgraph=True)
    expected = program(x)
    launches: list[Launch] = []
    kernels: list[Any] = []

    def handler(kernel: Any, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        kernels.append(kernel)
        return run_kernel(kernel, inputs)

    with listening(launches.append):
        found = [program(x)]
    with handled_by(handler):
        found.append(program(x))
    return len(launches), len(kernels), equal(found, [expected] * 2)


def memory_of_a_chain(length: int) -> int:
    """Bytes of the card in use at most while a chain of sums runs."""
    torch.compiler.reset()
    x = on_card((64, 1024), torch.float16, 7, dist.get_rank())
    program = torch.compile(lambda x: chain(x, length), fullgraph=True)
    program(x)
    torch.spyre.synchronize()
    torch.spyre.reset_peak_memory_stats()
    before = torch.spyre.memory_allocated()
    program(x)
    torch.spyre.synchronize()
    return int(torch.spyre.max_memory_allocated() - before)


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


def threads_in_one_group() -> list[str]:
    """What goes wrong when several threads ask for collectives of the same group."""
    import threading

    group, wrong = dist.new_group(), []

    def work() -> None:
        try:
            for _ in range(200):
                x = torch.ones(4, device="spyre")
                dist.all_reduce(x, group=group, async_op=True).wait()
                if x.sum().item() != 4 * dist.get_world_size():
                    wrong.append(str(x))
        except Exception as error:
            wrong.append(str(error))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    dist.destroy_process_group(group)
    return wrong


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
