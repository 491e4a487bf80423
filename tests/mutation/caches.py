"""Damaged entries of the caches on disk: an op runs whatever is there, and runs right where checksums do not fit."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.mutation import card, directories
from torch_spyre.execution import kernel

texts: dict[str, str] = {}  # of the kernels that fill a cache: who has the corpus need not trace them again


@dataclass(frozen=True)
class Filled:
    """A kernel, and a cache that holds what compiling it left there."""

    text: str
    inputs: tuple[torch.Tensor, ...]
    root: Path


def entry(root: Path, kind: str) -> Path:
    """The entry of a kernel or of a plan in a cache."""
    found = [path.parent for path in root.rglob(directories.MANIFEST)]
    return next(path for path in sorted(found) if ("plans" in path.relative_to(root).parts) == (kind == "plans"))


@cache
def filled(kind: str) -> Filled:
    from tests.mutation.seeds import captured_text

    inputs = (_halves(5, 200), _halves(5, 200))
    if kind not in texts:
        texts[kind] = captured_text(_plain if kind == "kernels" else _layers, inputs)
    text = texts[kind]
    root = Path(tempfile.mkdtemp(prefix="spyre-mutation-"))
    with _cache_at(root):
        kernel._prepared(text, inputs)
    return Filled(text, inputs, root)


def _plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def _layers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Enough ops that their plan is kept, of which some repeat."""
    for _ in range(4):
        x = torch.relu(x * y + x) - y
    return x


def _halves(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).half().to("spyre")


class _cache_at:  # noqa: N801
    def __init__(self, root: Path) -> None:
        self.root = root

    def __enter__(self) -> None:
        os.environ["SPYRE_KERNEL_CACHE"] = str(self.root)

    def __exit__(self, *_: object) -> None:
        os.environ["SPYRE_KERNEL_CACHE"] = "0"


def run(kind: str, given: dict[str, Any], scratch: Path) -> str:
    """The bits of the kernel, prepared from a cache with this entry in it."""
    there = filled(kind)
    root = scratch / "cache"
    shutil.copytree(there.root, root)
    if kind == "plans":
        shutil.rmtree(entry(root, "kernels"))  # else nobody plans
    damaged = entry(root, kind)
    shutil.rmtree(damaged)
    directories.write(damaged, given.get("files"))
    damaged.chmod(0o700)
    if given.get("rehash") is True:
        directories.rehash(damaged)
    with _cache_at(root):
        plan, _ = kernel._prepared(there.text, there.inputs)
    return _bits(plan)


def _bits(plan: Any) -> str:
    """Of a kernel with two inputs and an output, each of 5 rows of 4 sticks."""
    contents = [random.Random(i).randbytes(5 * 4 * 128) for i in range(3)]
    return card.launched(plan, contents, range(3), [])


@cache
def right(kind: str) -> str:
    """The bits without any cache."""
    there = filled(kind)
    plan, _ = kernel._prepared(there.text, there.inputs)
    return _bits(plan)


def seeds(kind: str) -> list[dict[str, Any]]:
    files = directories.read(entry(filled(kind).root, kind))
    return [{"files": directories.taken_apart(files), "rehash": True}, {"files": files, "rehash": False}]
