"""What the backend did with a program, and why: collected, told and drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import explain
    from .report import Report

__all__ = ["Report", "explain"]


def __getattr__(name: str) -> Any:
    """The command line imports this package before there is a card."""
    if name == "explain":
        from .api import explain

        return explain
    if name == "Report":
        from .report import Report

        return Report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
