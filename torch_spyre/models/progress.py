"""What a person sees while nothing else is to be seen."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_WIDTH = 24


class Progress:
    """Stages on standard error: a bar on a terminal, which goes away; one line per stage elsewhere, with its time."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._stage = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._stage, start = name, time.monotonic()
        self._draw(f"{name} ...")
        try:
            yield
        finally:
            self._draw("")
        if not self._terminal:
            print(f"{name}: {time.monotonic() - start:.1f} s", file=self._stream, flush=True)

    def tick(self, done: int, total: int) -> None:
        full = _WIDTH * done // max(1, total)
        self._draw(f"{self._stage} [{'#' * full}{'.' * (_WIDTH - full)}] {done}/{total}")

    def _draw(self, text: str) -> None:
        if self._terminal:
            self._stream.write(f"\r\x1b[2K{text}")
            self._stream.flush()
