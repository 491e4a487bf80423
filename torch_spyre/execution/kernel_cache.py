"""Compiled kernels on disk, found by content: a second process starts warm. An entry is a SpyreCode directory."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import _C
from .._inductor import config, logging
from ..backend.tiling import resident_budget
from ..card import description as card_description
from ..ir import spyrecode
from .signature import Argument
from .store import Store
from .version import compiler_version

KERNELS: Store[dict[str, Any]] = Store(
    "kernel cache",
    lambda path: spyrecode.read(path),
    lambda path, description: spyrecode.write(path, description),
    lambda: config.kernel_cache_bytes,
)


def find_or_build(text: str, signature: Sequence[Argument], build: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The description of this kernel for this signature: from disk if it is there, else built and kept."""
    root = directory()
    if root is None or logging.artifacts_wanted():  # artifacts are written by compiling
        return build()
    key = key_of(text, signature)
    found = KERNELS.find(root, key)
    if found is None:
        found = build()
        KERNELS.keep(root, key, found)
    return found


def directory() -> Path | None:
    """Where compiled kernels are kept: ``SPYRE_KERNEL_CACHE``, or beside Inductor's own cache; None when turned off."""
    given = os.environ.get("SPYRE_KERNEL_CACHE", "")
    if given == "0":
        return None
    if given not in ("", "1"):
        return Path(given)
    # As in torch._inductor.runtime.cache_dir_utils, whose import takes a second that eager programs should not wait.
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return (Path(inductor) if inductor else Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")) / "spyre"


def stats() -> dict[str, int]:
    """How often an entry was found, missed, rebuilt because it was damaged, and evicted, in this process."""
    return KERNELS.stats()


def key_of(text: str, signature: Sequence[Argument]) -> str:
    """Hash of all that a compiled kernel follows from."""
    parts = {
        "kernel": text,
        "signature": [[str(argument.layout), argument.offset, argument.storage] for argument in signature],
        "hardware": card_description.constants(),
        "cores": _C.card_cores(_C.current_device()),
        "lx": resident_budget(),
        "flex": _C.flex_device(),
        "config": config.save_config_portable(ignore_private_configs=False),
        "compiler": compiler_version(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
