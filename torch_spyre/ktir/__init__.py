"""Programs of KTIR: load, run on arrays, time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..ir.ktir.source import KtirError

if TYPE_CHECKING:
    from .module import Memory, Module, load

__all__ = ["KtirError", "Memory", "Module", "load"]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is asked for: the command line has parts that do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import module

    return getattr(module, name)
