"""``torch.profiler`` on the card, and traces beyond those that it writes.

``torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1])`` profiles the card, and needs
nothing of this module. What is here reads a Chrome trace that a profile was exported to.
"""

from __future__ import annotations

import torch

from .. import _C
from .acelyzer import export_ideal_cycles
from .modelled_trace import export_modelled_trace

__all__ = ["export_ideal_cycles", "export_modelled_trace", "is_available", "row_limit", "set_row_limit"]


def is_available() -> bool:
    """Whether ``torch.profiler`` takes ``ProfilerActivity.PrivateUse1``."""
    return torch.profiler.ProfilerActivity.PrivateUse1 in torch.profiler.supported_activities()


def row_limit() -> int:
    """Rows of cards that one profile keeps at most."""
    return _C.profiler_row_limit()


def set_row_limit(rows: int) -> None:
    """Change how many rows of cards a profile keeps. It warns of those beyond, with their number."""
    if rows < 0:
        raise ValueError(f"a profile keeps 0 rows or more, not {rows}")
    _C.set_profiler_row_limit(rows)
