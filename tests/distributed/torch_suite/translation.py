"""PyTorch's own tests of process groups, read as tests of ``spyreccl``: what they do on CUDA devices is done on cards.

The tests are those of the installed PyTorch. Where their source says ``cuda``, it is read as ``spyre``; where it asks
for NCCL or Gloo, as ``spyreccl``; tensors without a device are on the card. Nothing else is changed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .exclusions import REPLACEMENTS

BACKEND = "spyreccl"
MODULE = "torch.testing._internal.distributed.distributed_test"
_BEGIN = "class DistributedTest:"


def translated(source: str) -> str:
    """The source of PyTorch's tests, for cards."""
    head, begin, tests = source.partition(_BEGIN)
    assert begin, "PyTorch's tests have another form than expected"
    head = head.replace(".cuda(device_id)", ".spyre(device_id)")
    head = head.replace("wait_for=None, timeout=10)", "wait_for=None, timeout=20)")  # machines may be busy
    # Objects that ranks send and compare: a tensor in them would be on each rank's own card.
    head = head.replace("Foo(torch.randn(3, 3))", 'Foo(torch.randn(3, 3, device="cpu"))')
    tests = re.sub(r"\bcuda\b", "spyre", tests).replace("is_cuda", "is_spyre")
    # Conditions of decorators: what is for NCCL or Gloo alone is for this backend too.
    tests = re.sub(r'BACKEND != "(nccl|gloo)"', f'BACKEND != "{BACKEND}"', tests)
    tests = re.sub(r'is_available\(\{"(nccl|gloo)"\}\)', f'is_available({{"{BACKEND}"}})', tests)
    tests = re.sub(r'backend=(dist.Backend.NCCL|"nccl")', f'backend="{BACKEND}"', tests)
    for old, new in REPLACEMENTS.items():
        assert old in tests, f"PyTorch's tests do not have {old!r} any more"
        tests = tests.replace(old, new)
    return head + begin + tests


def load(size: int) -> types.ModuleType:
    """The module of the tests, for a world of so many ranks; needs no process group."""
    os.environ.update(BACKEND=BACKEND, WORLD_SIZE=str(size), INIT_METHOD="file://")
    _prepare(size)
    spec = importlib.util.find_spec(MODULE)
    assert spec and spec.origin
    module = types.ModuleType("torch_suite_of_cards")
    module.__file__ = spec.origin
    sys.modules[module.__name__] = module
    source = translated(Path(spec.origin).read_text())
    exec(compile(source, spec.origin, "exec", dont_inherit=True), module.__dict__)
    return module


def test_class(module: types.ModuleType) -> Any:
    class Cards(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[name-defined, misc]
        pass

    return Cards


def _prepare(size: int) -> None:
    """What tests and decorators ask of the machine is asked of the cards."""
    import torch.testing._internal.common_distributed as common

    for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
        common.DistTestCases.backend_feature[feature] = {BACKEND}
    common.DistTestCases.backend_feature["spyre"] = {BACKEND}
    common.init_multigpu_helper = lambda world_size, _: {rank: [rank] for rank in range(world_size)}
    common.skip_if_no_gpu = lambda test: test
    common.skip_if_lt_x_gpu = lambda count, **_: unless(size >= count, f"for {count} cards and more")
    # Their groups are of ranks 1 and 2, or of neighbours.
    common.skip_if_small_worldsize = unless(size >= 3, "for three ranks and more")
    common.requires_nccl_version = lambda *_: lambda test: test


def unless(condition: bool, reason: str) -> Callable[[Any], Any]:
    return (lambda test: test) if condition else unittest.skip(reason)
