"""Code in which a signal's handler waits, because an exception of it would do harm or get lost there.

Modules are imported when a program first needs them. Python cannot import SymPy or Inductor again after an exception in
the middle: every later compile would fail. PyTorch drops exceptions of guards that it evaluates from C++.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

from . import _C


class deferred:
    """Signals that arrive inside are handled at the end."""

    def __enter__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._late: list[int] = []
        self._frame = sys._getframe(1)
        if threading.current_thread() is not threading.main_thread():
            return  # handlers never run here
        try:
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._handle)
        except BaseException:  # a handler ran, and raised
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        raised = None
        restore = dict(self._handlers)
        while restore:
            number, handler = next(iter(restore.items()))
            try:
                signal.signal(number, handler)
                _C.watch_ctrl_c()
                del restore[number]
            except BaseException as error:  # a handler ran, and raised
                _note(handler)
                raised = error
        del self._frame
        for number in self._late:
            _note(self._handlers[number])
            self._handlers[number](number, None)
        if raised is not None:
            raise raised

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._waits(frame):
            self._late.append(number)
        else:
            _note(self._handlers[number])
            self._handlers[number](number, frame)

    def _waits(self, frame: FrameType | None) -> bool:
        return True


class whole_imports(deferred):
    """Signals that arrive during an import inside are handled at the end; others at once."""

    def _waits(self, frame: FrameType | None) -> bool:
        return _importing(frame, self._frame)


def _note(handler: Any) -> None:
    """Ctrl-C drops what is queued. Handlers of the user's own do not."""
    if handler is signal.default_int_handler:
        _C.note_ctrl_c()


def _importing(frame: FrameType | None, outermost: FrameType) -> bool:
    """Whether an import is under way in one of the frames that ``outermost`` called."""
    while frame is not None and frame is not outermost:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
