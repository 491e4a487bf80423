"""What each rank does for one of PyTorch's tests."""

from __future__ import annotations

import functools
import os
import sys
import traceback
import types
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from torch_spyre import _C

from . import translation


class Outcome(NamedTuple):
    """``calls``: of collectives and messages that reached ``spyreccl``."""

    state: str  # passed, skipped, failed
    calls: int
    text: str = ""


@functools.cache
def _module(size: int) -> types.ModuleType:
    return translation.load(size)


def run_test(name: str, directory: str) -> Outcome:
    """In a process group of its own, whose ranks meet in a directory that is empty at first."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    module = _module(size)
    os.environ["TEMP_DIR"] = directory
    module.INIT_METHOD = f"file://{directory}/second_group"
    module.Barrier.barrier_id = 0
    torch.spyre.set_device(rank)
    torch.manual_seed(1234)
    os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)  # as an earlier test may have left it
    dist.set_debug_level(dist.DebugLevel.OFF)
    seconds = module.CUSTOM_PG_TIMEOUT.get(name, module.default_pg_timeout)
    backends: list[Any] = []
    create = _C.create_spyreccl
    _C.create_spyreccl = lambda *arguments: backends.append(create(*arguments)) or backends[-1]  # type: ignore[assignment]
    try:
        dist.init_process_group(
            translation.BACKEND,
            init_method=f"file://{directory}/group",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=seconds),
        )
        state, text = _outcome(module, name, rank, directory)
    finally:
        _C.create_spyreccl = create
        torch.set_default_device(None)
        if dist.is_initialized():
            dist.destroy_process_group()
    return Outcome(state, sum(backend.calls for backend in backends), text)


def _outcome(module: types.ModuleType, name: str, rank: int, directory: str) -> tuple[str, str]:
    tests = translation.test_class(module)
    method = getattr(tests, name)
    if getattr(method, "__unittest_skip__", False):
        return "skipped", method.__unittest_skip_why__
    try:
        test = tests(name)
        test.rank, test.file_name = rank, f"{directory}/group"
        module.Barrier.sync()
        torch.set_default_device(f"spyre:{rank}")
        getattr(test, name)()
        torch.set_default_device(None)
        module.Barrier.sync(timeout=60)
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as end:
        skips = {skip.exit_code: skip.message for skip in module.TEST_SKIPS.values()}
        return ("skipped", skips[end.code]) if end.code in skips else ("failed", f"exit with {end.code}")
    except BaseException:
        return "failed", traceback.format_exc()
    finally:
        print(end="", flush=True)
    return "passed", ""


def names() -> list[str]:
    """Of all tests, in the order of their source."""
    sys.path.insert(0, str(Path(__file__).parents[3]))
    tests = vars(_module(int(os.environ["WORLD_SIZE"])).DistributedTest._DistTestBase)
    return [name for name in tests if name.startswith("test_")]
