"""Compiled kernels on disk, found by content: a second process starts warm. An entry is a SpyreCode directory."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .. import _C
from .._inductor import config, logging
from ..backend.tiling import resident_budget
from ..card import description as card_description
from ..ir import spyrecode
from .signature import Argument
from .store import Store, warn_unused
from .version import compiler_version

FOLDER = "spyre"  # of ours, in a directory that may have other things

KERNELS: Store[dict[str, Any]] = Store(
    "kernel cache", "", spyrecode.unpack, spyrecode.pack, lambda: config.kernel_cache_bytes
)


def find_or_build(
    text: str,
    signature: Sequence[Argument],
    build: Callable[[], dict[str, Any]],
    prepare: Callable[[dict[str, Any]], Any] = lambda description: description,
) -> Any:
    """What ``prepare`` makes of this kernel's description for this signature: that on disk, else one built and kept.

    One that was found and cannot be prepared is damaged in a way that its checksums do not show: it is built again.
    """
    root = directory()
    if root is None or logging.artifacts_wanted():  # artifacts are written by compiling
        return prepare(build())
    key = key_of(text, signature)
    found = KERNELS.find(root, key)
    if found is not None:
        try:
            return prepare(found)
        except Exception as error:
            KERNELS.discard(root, key, error)
    built = build()
    KERNELS.keep(root, key, built)
    return prepare(built)


def directory() -> Path | None:
    """Where compiled kernels are kept; None when turned off, or where there is no place for them.

    That is a folder of ours in ``SPYRE_KERNEL_CACHE``, or in Inductor's own cache.
    """
    given = os.environ.get("SPYRE_KERNEL_CACHE", "")
    if given == "0":
        return None
    try:
        return _without_links(given if given not in ("", "1") else _inductors()) / FOLDER
    except OSError as error:  # no directory for temporary files, or the current one is gone
        warn_unused(Path(given or FOLDER), error)
        return None


def _inductors() -> str:
    """As in torch._inductor.runtime.cache_dir_utils, whose import takes a second that eager programs should not wait.

    The user may have no name.
    """
    if given := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return given
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid_{os.getuid()}"
    return os.path.join(tempfile.gettempdir(), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


def _without_links(given: str) -> Path:
    """An absolute path, on which links are refused later; those of the system's temporary directory are its own."""
    path = Path(os.path.abspath(given))
    with suppress(OSError, ValueError):
        temporary = tempfile.gettempdir()
        return Path(os.path.realpath(temporary)) / path.relative_to(temporary)
    return path


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
