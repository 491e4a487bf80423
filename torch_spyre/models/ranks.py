"""``spyre run --cards N``: a process for each card, started, watched and ended together.

The first one shows what is to be seen. All of them write down why they fail, and what their card says at the end.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from .command_line import ended_by_a_signal
from .errors import ModelError

if TYPE_CHECKING:
    from .tensor_parallel import Place

_ARGUMENTS, _STORE = "arguments", "store"
_GRACE = 5.0  # seconds for the others to find out that one has failed
_PARENT_DEATH_SIGNAL = 1  # of prctl


class RankFailedError(RuntimeError):
    """A process of a card has failed for a reason that is not the model's."""


def run(arguments: argparse.Namespace) -> None:
    """Runs the command on all cards. Raises what the first one to fail says."""
    with TemporaryDirectory(prefix="spyre-run-") as name, ended_by_a_signal():
        directory = Path(name)
        (directory / _ARGUMENTS).write_bytes(pickle.dumps(arguments))
        processes: list[subprocess.Popen[bytes]] = []
        try:
            processes += (_start(directory, rank, arguments.cards) for rank in range(arguments.cards))
            _watch(processes, directory)
        finally:
            _end(processes)


def _start(directory: Path, rank: int, size: int) -> subprocess.Popen[bytes]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    with (directory / f"stderr.{rank}").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, str(directory)],
            env=os.environ | {name: str(value) for name, value in place.items()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if rank else None,
            stderr=said if rank else None,
        )


def _watch(processes: list[subprocess.Popen[bytes]], directory: Path) -> None:
    """Waits until all have ended. Raises if one has failed, as soon as the others know it."""
    deadline = None
    while any(process.poll() is None for process in processes) and (deadline is None or time.monotonic() < deadline):
        if deadline is None and any(process.returncode for process in processes):
            deadline = time.monotonic() + _GRACE
        time.sleep(0.05)
    failed = [rank for rank, process in enumerate(processes) if process.returncode]
    if failed:
        raise _failure([_Reason.of(directory, rank, processes[rank].returncode) for rank in failed], len(processes))


@dataclass(frozen=True)
class _Reason:
    rank: int
    said: str
    of_the_model: bool = False
    of_another: bool = False  # it is about what another rank did

    @staticmethod
    def of(directory: Path, rank: int, code: int) -> _Reason:
        file = directory / f"error.{rank}"
        if file.exists():
            return _Reason(rank, **json.loads(file.read_text()))
        end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lines = (directory / f"stderr.{rank}").read_text(errors="replace").strip().splitlines()
        return _Reason(rank, f"its process has ended with {end}" + (f": {lines[-1]}" if lines else ""))


def _failure(reasons: list[_Reason], size: int) -> Exception:
    first = min(reasons, key=lambda reason: (reason.of_another, reason.rank))
    alike = len(reasons) == size and all(reason.said == first.said for reason in reasons)
    kind = ModelError if first.of_the_model else RankFailedError
    return kind(first.said if alike else f"card {first.rank}: {first.said}")


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# ---- in a process of a card


@contextmanager
def world(directory: Path) -> Iterator[Place]:
    """The group of all cards, and this one's place."""
    import torch.distributed as dist

    from ..constants import DISTRIBUTED_BACKEND_NAME
    from .tensor_parallel import place_in_world

    dist.init_process_group(
        DISTRIBUTED_BACKEND_NAME,
        init_method=f"file://{directory / _STORE}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    yield place_in_world()
    dist.destroy_process_group()


@dataclass(frozen=True)
class CardFacts:
    """What a card says at the end of a run: bytes in use at most, milliseconds, and how many of them it waited."""

    peak: int
    total: int
    milliseconds: float
    waiting: float

    @staticmethod
    def now() -> CardFacts:
        from .. import device

        stream = device.current_stream()
        return CardFacts(
            device.max_memory_allocated(), device.mem_get_info()[1], stream.modelled_time(), stream.communication_time()
        )

    def of_all(self) -> list[CardFacts]:
        """Those of all ranks: told through the store, since a card in timing mode has no values to send."""
        import torch.distributed as dist

        store = dist.distributed_c10d._get_default_store()
        store.set(f"card/{dist.get_rank()}", json.dumps(asdict(self)))
        return [CardFacts(**json.loads(store.get(f"card/{rank}"))) for rank in range(dist.get_world_size())]


def main(directory: Path) -> int:
    _end_with_parent()
    arguments = pickle.loads((directory / _ARGUMENTS).read_bytes())
    from . import run

    try:
        run.run_member(arguments, directory)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if arguments.traceback:
            traceback.print_exc()
        reason = {"said": _said(error), "of_the_model": isinstance(error, ModelError), "of_another": _of_another(error)}
        (directory / f"error.{os.environ['RANK']}").write_text(json.dumps(reason))
        return 1
    return 0


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, OSError | ValueError | RuntimeError) else repr(error)


def _of_another(error: BaseException) -> bool:
    """Whether a collective was given up, or what came of that."""
    import torch.distributed as dist

    while error.__cause__ and not isinstance(error, dist.DistError):
        error = error.__cause__
    return isinstance(error, dist.DistError)


def _end_with_parent() -> None:
    """However the command ends, no card goes on without it."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
