"""What a person sees while nothing else is to be seen."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_WIDTH = 24
_TERMINAL_SECONDS = 1.0
_LINE_SECONDS = 15.0  # between lines where each of them stays


class Progress:
    """Stages on standard error: a bar on a terminal, which goes away; one line per stage elsewhere, with its time."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._stage = ""

    @contextmanager
    def stage(self, name: str, state: Callable[[], str] | None = None) -> Iterator[None]:
        """What runs inside, by name. If that has no steps to :meth:`tick`, ``state`` says how far it is."""
        self._stage, start = name, time.monotonic()
        self._draw(f"{name} ...")
        try:
            if state is None:
                yield
            else:
                with self._repeated(lambda: f"{name} ... {time.monotonic() - start:.0f} s, {state()}"):
                    yield
        finally:
            self._draw("")
        if not self._terminal:
            self._line(f"{name}: {time.monotonic() - start:.1f} s")

    def tick(self, done: int, total: int) -> None:
        full = _WIDTH * done // max(1, total)
        self._draw(f"{self._stage} [{'#' * full}{'.' * (_WIDTH - full)}] {done}/{total}")

    @contextmanager
    def _repeated(self, text: Callable[[], str]) -> Iterator[None]:
        done = threading.Event()
        show, pause = (self._draw, _TERMINAL_SECONDS) if self._terminal else (self._line, _LINE_SECONDS)

        def repeat() -> None:
            while not done.wait(pause):
                show(text())

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def _draw(self, text: str) -> None:
        if self._terminal:
            self._stream.write(f"\r\x1b[2K{text}")
            self._stream.flush()
