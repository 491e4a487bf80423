"""Worker processes and the tasks they take: an op that crashes or hangs is a result like any other."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tests import workers

from .check import Result

Done = Callable[[dict[str, Any], list[Result]], None]
GRACE = 30  # seconds that a worker has on top of a sample's limit before it counts as hanging
START = 600  # seconds that a worker may take to begin, on a machine that is busy


def run(tasks: Iterable[dict[str, Any]], jobs: int, done: Done) -> None:
    """Run all tasks; ``done`` is called with each and its results, one call at a time."""
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    lock, stop = threading.Lock(), threading.Event()

    def work() -> None:
        worker: _Worker | None = None
        try:
            while not stop.is_set():
                task = waiting.get_nowait()
                results: list[Result] = []
                worker = worker or _Worker()
                while not worker.run(task, results):
                    worker.close()
                    worker = _Worker()
                with lock:
                    done(task, results)
        except queue.Empty:
            pass
        finally:
            if worker:
                worker.close()

    with ThreadPoolExecutor(jobs) as executor:
        try:
            for future in as_completed([executor.submit(work) for _ in range(jobs)]):
                future.result()
        finally:
            stop.set()


class _Worker:
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="spyre-coverage-")
        log = Path(self.folder.name, "log")
        log.touch()
        environment = {
            "TORCH_SPYRE_DEBUG": "1",
            "SPYRE_LOG_FILE": str(log),
            "TORCH_SPYRE_DOWNCAST_WARN": "0",
            "TORCH_SPYRE_FALLBACK_WARN": "0",
        }
        self.process = workers.Worker("tests.coverage.worker", environment=environment)
        self.process.start()
        message = self._receive(START)
        if isinstance(message, str):
            raise RuntimeError(f"A worker does not start: {message}. See python -m tests.coverage.worker.")

    def run(self, task: dict[str, Any], results: list[Result]) -> bool:
        """Adds to ``results``; False if the process died on the way: call it again on a new one for the rest."""
        self.process.send(task)
        now = Result(task["op"], task["mode"], "", -1)
        while True:
            message = self._receive(task["limit"] + GRACE)
            if isinstance(message, str):
                now.outcome, now.note = "crash", message
                if now not in results:  # else it died of what went on after a result
                    results.append(now)
                    task["done"].append([now.dtype, now.sample])
                return False
            if message["event"] == "done":
                return True
            now = Result(**message["result"])
            if message["event"] == "end":
                results.append(now)
                task["done"].append([now.dtype, now.sample])

    def _receive(self, seconds: float) -> dict[str, Any] | str:
        try:
            return self.process.receive(seconds)
        except workers.Lost as lost:
            return str(lost)

    def close(self) -> None:
        self.process.close()
        self.folder.cleanup()
