"""What ranks do wrong in the tests of faults, each in a group of its own. They return what is raised."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

SECONDS = 30.0  # of time-outs that should not be reached


@contextlib.contextmanager
def own_group(seconds: float = SECONDS) -> Iterator[Any]:
    group = dist.new_group(timeout=timedelta(seconds=seconds))
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def received(source: int, group: Any) -> str:
    """What is raised when the host waits for what a message brings."""
    into = ones(4)

    def receive() -> None:
        dist.recv(into, source, group=group)
        torch.spyre.synchronize()

    return raised(receive)


def ones(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="spyre")


CALLS: dict[str, list[Callable[[Any], Any]]] = {  # by rank
    "op": [lambda g: dist.all_reduce(ones(4), group=g), lambda g: dist.broadcast(ones(4), 0, group=g)],
    "reduce op": [
        lambda g: dist.all_reduce(ones(4), group=g),
        lambda g: dist.all_reduce(ones(4), dist.ReduceOp.MAX, group=g),
    ],
    "shape": [lambda g: dist.all_reduce(ones(4), group=g), lambda g: dist.all_reduce(ones(5), group=g)],
    "dtype": [
        lambda g: dist.all_reduce(ones(4), group=g),
        lambda g: dist.all_reduce(ones(4, dtype=torch.float32), group=g),
    ],
    "root": [lambda g: dist.broadcast(ones(4), 0, group=g), lambda g: dist.broadcast(ones(4), 1, group=g)],
    "sizes": [
        lambda g: dist.all_to_all_single(ones(4), ones(4), [2, 2], [2, 2], group=g),
        lambda g: dist.all_to_all_single(ones(4), ones(4), [3, 1], [2, 2], group=g),
    ],
}


def mismatch(kind: str) -> tuple[str, float]:
    """The error, and what a collective of the same group gives afterwards."""
    with own_group() as group:
        text = raised(lambda: CALLS[kind][dist.get_rank()](group))
        after = ones(1)
        dist.all_reduce(after, group=group)
        return text, after.item()


def other_order() -> list[str]:
    """Two collectives, in another order on each rank."""
    with own_group() as group:
        calls = [lambda: dist.all_reduce(ones(4), group=group), lambda: dist.barrier(group)]
        return [raised(call) for call in (calls if dist.get_rank() == 0 else reversed(calls))]


def absent(missing: int, seconds: float) -> tuple[str, float]:
    """All but one join."""
    with own_group(seconds) as group:
        began = time.monotonic()
        text = "" if dist.get_rank() == missing else raised(lambda: dist.all_reduce(ones(4), group=group))
        took = time.monotonic() - began
        dist.barrier()
        return text, took


def late(missing: int, by: float, seconds: float) -> tuple[str, str]:
    """What is raised, and what is written to stderr meanwhile."""
    with own_group(seconds) as group, tempfile.TemporaryFile() as said:
        dist.barrier(group)
        stderr = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            if dist.get_rank() == missing:
                time.sleep(by)
            text = raised(lambda: dist.all_reduce(ones(4), group=group))
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        said.seek(0)
        return text, said.read().decode()


def first_collective() -> str:
    return raised(lambda: dist.all_reduce(ones(4)))


def of_another_version() -> str:
    """What the first collective of a group says whose members come with versions of their own."""
    with patch("torch_spyre.__version__", f"0.{dist.get_rank()}"), own_group() as group:
        return raised(lambda: dist.all_reduce(ones(4), group=group))


def unsent(seconds: float) -> str:
    with own_group(seconds) as group:
        text = received(1, group) if dist.get_rank() == 0 else ""
        dist.barrier()
        return text


def wrong_message() -> str:
    with own_group() as group:
        if dist.get_rank() == 0:
            dist.send(ones(5), 1, group=group)
            return ""
        return received(0, group)


def wait_with_time() -> tuple[str, str, float]:
    """wait(timeout) of work that the other rank joins later: an error now, and a value after all."""
    with own_group() as group:
        dist.barrier(group)
        value = ones(1)
        if dist.get_rank() == 1:
            time.sleep(1)
        work = dist.all_reduce(value, group=group, async_op=True)
        early = raised(lambda: work.wait(timedelta(milliseconds=100))) if dist.get_rank() == 0 else ""
        return early, raised(lambda: work.wait(timedelta(seconds=SECONDS))), value.item()


def failed_before() -> str:
    """Work in front of the collective failed on one rank."""
    with own_group() as group:
        value = ones(4)
        if dist.get_rank() == 1:
            index = torch.tensor([7], device="spyre")
            value = value.index_select(0, index).expand(4).contiguous()
        text = raised(lambda: dist.all_reduce(value, group=group))
        raised(torch.spyre.synchronize)
        return text


def destroy_under_way(joins: bool, seconds: float) -> str:
    """Rank 0 destroys the group while its collective waits for rank 1, which comes late or never."""
    group = dist.new_group(timeout=timedelta(seconds=seconds))
    dist.barrier(group)
    value = ones(1)
    text = ""
    if dist.get_rank() == 0:
        work = dist.all_reduce(value, group=group, async_op=True)
        dist.destroy_process_group(group)
        text = raised(lambda: work.wait(timedelta(seconds=SECONDS))) or str(value.item())
        dist.barrier()
        return text
    time.sleep(0.5)
    if joins:
        dist.all_reduce(value, group=group)
    dist.barrier()
    if not joins:
        text = raised(lambda: dist.all_reduce(value, group=group))
    dist.destroy_process_group(group)
    return text or str(value.item())


def interrupted() -> tuple[bool, str]:
    """A Ctrl-C while one rank waits for the other."""
    group = dist.new_group(timeout=timedelta(seconds=SECONDS))
    dist.barrier(group)
    raises = False
    text = ""
    if dist.get_rank() == 0:
        threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
        try:
            dist.all_reduce(ones(4), group=group)
        except KeyboardInterrupt:
            raises = True
            time.sleep(0.2)  # the backend looks for it now and then
    dist.barrier()
    if dist.get_rank() == 1:
        text = raised(lambda: dist.all_reduce(ones(4), group=group))
    dist.barrier()
    dist.destroy_process_group(group)
    return raises, text


def again_and_again(times: int) -> dict[str, tuple[int, int]]:
    """Groups made, used and destroyed: what is in use before and after."""

    def cycle() -> None:
        with own_group() as group:
            dist.all_reduce(ones(300, 70), group=group)
            other = 1 - dist.get_rank()
            dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, ones(4), other, group), dist.P2POp(dist.irecv, ones(4), other, group)]
            )[0].wait()

    def in_use() -> dict[str, int]:
        gc.collect()
        threads, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        with open("/proc/self/maps") as maps:
            shared = sum("memfd:spyreccl" in line for line in maps)
        return {"threads": threads, "files": files, "shared": shared, "card": torch.spyre.memory_allocated()}

    cycle()
    before = in_use()
    for _ in range(times):
        cycle()
    after = in_use()
    return {what: (before[what], after[what]) for what in before}


def barrier(missing: tuple[int, ...], names_all: bool) -> str:
    with own_group() as group:
        dist.monitored_barrier(group, timedelta(seconds=SECONDS))
        text = ""
        if dist.get_rank() not in missing:
            text = raised(lambda: dist.monitored_barrier(group, timedelta(seconds=0.5), names_all))
        dist.barrier()
        return text
