"""Ranks for tests: processes that stay, each a member of one world, and run functions together."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

TIMEOUT = 60.0  # of a collective


class RanksFailed(AssertionError):
    """What every rank says of a function that some could not carry out."""


class Ranks:
    """``size`` processes; ``run(function, *args)`` calls a function of a module on all of them.

    With ``joins`` they are a process group from the beginning. ``each``: variables of the environment, by rank.
    """

    def __init__(
        self,
        size: int,
        environment: dict[str, str] | None = None,
        timeout: float = TIMEOUT,
        joins: bool = True,
        each: list[dict[str, str]] | None = None,
    ) -> None:
        # The server has PyTorch imported, and nothing begun: processes start quickly.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])
        port = free_port()
        self.size = size
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "TORCHELASTIC_RUN_ID": "tests",  # as under torchrun: each rank has the card of its number
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                **(environment or {}),
                **(each[rank] if each else {}),
            }
            process = context.Process(target=_serve, args=(theirs, place, timeout if joins else None), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any, seconds: float = 120) -> list[Any]:
        """The results by rank. Raises with all that failed if any did."""
        outcomes = self.outcomes(function, *args, seconds=seconds)
        failed = [f"rank {rank}:\n{text}" for rank, (ok, text) in enumerate(outcomes) if not ok]
        if failed:
            raise RanksFailed("\n".join(failed))
        return [result for _, result in outcomes]

    def outcomes(self, function: Callable[..., Any], *args: Any, seconds: float = 120) -> list[tuple[bool, Any]]:
        """For each rank whether it could, and its result or its traceback."""
        for pipe in self.pipes:
            pipe.send((function, args))
        outcomes: list[tuple[bool, Any]] = []
        for rank, pipe in enumerate(self.pipes):
            try:
                outcomes.append(pipe.recv() if pipe.poll(seconds) else (False, f"no answer within {seconds} s"))
            except (EOFError, ConnectionResetError):
                self.processes[rank].join(5)
                outcomes.append((False, f"the process ended with {self.processes[rank].exitcode}"))
        return outcomes

    def close(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()

    def kill(self) -> None:
        """At once, whatever they do."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _serve(pipe: Connection, place: dict[str, str], timeout: float | None) -> None:
    os.environ.update(place)
    import torch.distributed as dist

    if timeout:
        dist.init_process_group(timeout=timedelta(seconds=timeout))
    while (work := pipe.recv()) is not None:
        function, args = work
        try:
            pipe.send((True, function(*args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    if timeout:
        dist.destroy_process_group()
