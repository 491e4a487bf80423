"""Masks that mask nothing stay in the program, where leaving them out would make a second program of each size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch

from .wrapping import wrap

_keeps_masks = ContextVar("keeps_masks", default=False)


@contextmanager
def masks_kept(kept: bool) -> Iterator[None]:
    token = _keeps_masks.set(kept)
    try:
        yield
    finally:
        _keeps_masks.reset(token)


def fix(masking_utils: ModuleType) -> None:
    wrap(masking_utils, "_ignore_causal_mask_sdpa", _keep_mask)


def _keep_mask(original: Any) -> Any:
    def ignore(*args: Any, **kwargs: Any) -> bool:
        kept = not torch.compiler.is_compiling() and _keeps_masks.get()  # which Dynamo could not follow
        return not kept and original(*args, **kwargs)

    return ignore
