"""Processes that answer requests, JSON line by line: whoever crashes or hangs one is known, and nothing else is lost.

A worker is a module run with ``python -m``, which takes its requests from :class:`Requests`.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any


class Lost(Exception):
    """There is no answer: the process crashed, or hangs. It is gone, and the next request starts another."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


class Worker:
    """Such a process, started when it is first needed and again after it was lost."""

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._environment = {"TORCH_SPYRE_VERIFY": "1", **os.environ, "PYTHONPATH": os.getcwd(), **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to one request. Raises :class:`Lost`."""
        self.send(request)
        return self.receive(seconds)

    def send(self, request: dict[str, Any]) -> None:
        self.start()
        assert self._process is not None and self._process.stdin is not None
        with suppress(BrokenPipeError):  # seen at the next read
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def receive(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.close()
            raise Lost("hang", f"no answer in {seconds:.0f} seconds") from None
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._process = None
        if code < 0:
            raise Lost("crash", f"the process died of {signal.Signals(-code).name}")
        raise Lost("crash", f"the process ended with code {code}")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def start(self) -> None:
        """Now, if there is none."""
        if self._process is not None:
            return
        self._process = process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lines = lines = queue.Queue()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put("")

        threading.Thread(target=read, daemon=True).start()


class Requests:
    """The worker's side: iterate over requests, ``answer`` each. What it runs may print and read; it sees neither."""

    def __init__(self) -> None:
        self._in = os.fdopen(os.dup(0))
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(json.loads, self._in)

    def answer(self, answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=self._out)
