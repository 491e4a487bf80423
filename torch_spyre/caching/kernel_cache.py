"""Compiled kernels on disk, found by content: a second process starts warm. An entry is a SpyreCode directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from .. import _C, logging
from .._inductor import config
from ..card import description as card_description
from ..card.lx_budget import resident_budget
from ..compile_records import count, timed
from ..ir import spyrecode
from ..ir.signature import Argument
from ..kernel_types import CompiledDescription
from .location import directory
from .store import Store
from .version import compiler_version

Prepared = TypeVar("Prepared")


def _unpack(file: spyrecode.Reader) -> CompiledDescription:
    return cast(CompiledDescription, spyrecode.unpack(file))  # what is in it is checked when it is prepared


KERNELS: Store[CompiledDescription] = Store(
    "kernel cache", "", _unpack, spyrecode.pack, lambda: config.kernel_cache_bytes
)


def find_or_build(
    text: str,
    signature: Sequence[Argument],
    build: Callable[[], CompiledDescription],
    prepare: Callable[[CompiledDescription], Prepared],
) -> Prepared:
    """What ``prepare`` makes of this kernel's description: the one on disk, or a new one that is built and stored.

    An entry that cannot be prepared is damaged in a way that its checksums do not show: it is built again.
    """
    root = directory()
    if root is None or logging.artifacts_wanted() or logging.passes_wanted():  # which compiling writes
        return prepare(build())
    with timed("stage:cache"):
        key = key_of(text, signature)
        found = KERNELS.find(root, key)
    count("stage:cache", **{"misses" if found is None else "hits": 1})
    if found is not None:
        try:
            return prepare(found)
        except Exception as error:
            KERNELS.discard(root, key, error)
    built = build()
    with timed("stage:cache"):
        KERNELS.keep(root, key, built)
    return prepare(built)


def stats() -> dict[str, int]:
    """How often an entry was found, missed, rebuilt because it was damaged, and evicted, in this process."""
    return KERNELS.stats()


def key_of(text: str, signature: Sequence[Argument]) -> str:
    """A hash of everything that determines a compiled kernel."""
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
