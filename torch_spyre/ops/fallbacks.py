"""Ops without a card kernel run on the CPU: warned once per op, counted, or refused."""

from contextlib import AbstractContextManager
from types import TracebackType

from .. import _C


class FallbackWarning(UserWarning):
    """An op had no kernel on the card and ran on the CPU."""


class fallback(AbstractContextManager["fallback"]):
    """Set what a CPU fallback does: ``"warn"`` (once per op), ``"error"``, or ``"count"`` (silently).

    Acts at once and for the whole process; used as a context manager, the former mode comes back at the end::

        torch.spyre.fallback("error")
        with torch.spyre.fallback("count"):
            ...
    """

    def __init__(self, mode: str) -> None:
        self.former = _C.fallback_mode()
        _C.set_fallback_mode(mode)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _C.set_fallback_mode(self.former)


def fallback_counts() -> dict[str, int]:
    """How often each op fell back to the CPU since the last reset."""
    return _C.fallback_counts()


def reset_fallback_counts() -> None:
    """Forget the counts; every op warns anew."""
    _C.reset_fallback_counts()
