"""``python -m tests.models.sweep [NAME ...]``: every architecture of the installed transformers on the card.

Results are kept in a file of JSON lines as they come, and what is there already is not run again (``--fresh``: it is).
``--shard i/n`` takes every n-th architecture, beginning with the i-th of 1 to n. The last line says how many are right;
the exit status is 1 if fewer than 97 % of those that a tiny model could be made of. ``--page`` writes the section of
docs/models.md from the results and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import select
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import page

ROOT = Path(__file__).parents[3]
SECONDS = 240  # for one architecture, on a machine that is busy
START = 600
AT_A_TIME = 40  # architectures that a process checks before another takes over
ENOUGH = 0.97


def main() -> int:
    options = _options()
    found = _read(options.json)
    if not options.page:
        from .architectures import names

        first, count = (int(part) for part in options.shard.split("/"))
        chosen = options.names or names()[first - 1 :: count]
        todo = [name for name in chosen if options.fresh or name not in found]
        _run(todo, options.jobs, options.json, found)
        found = {name: found[name] for name in chosen if name in found}
    else:
        page.write(found)
    if options.counts is not None:
        options.counts.write_text(json.dumps(page.counts(found)))
    print(page.summary(found))
    return 0 if page.share(found) >= ENOUGH else 1


def _read(path: Path) -> dict[str, Any]:
    """The last result of each. A run that was stopped may have left a part of a line."""
    if not path.exists():
        return {}
    text = path.read_text()
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        path.write_text(text)
    lines = [json.loads(line) for line in text.splitlines()]
    return {line.pop("name"): line for line in lines}


def _run(todo: list[str], jobs: int, path: Path, found: dict[str, Any]) -> None:
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in todo:
        waiting.put(name)
    lock = threading.Lock()
    path.parent.mkdir(parents=True, exist_ok=True)

    def work() -> None:
        worker = None
        try:
            while True:
                name = waiting.get_nowait()
                if worker is None or not worker.lives:
                    worker = _Worker()
                result = worker.check(name)
                with lock, path.open("a") as file:
                    found[name] = result
                    print(json.dumps({"name": name} | result), file=file, flush=True)
                    print(f"[{len(todo) - waiting.qsize()}/{len(todo)}] {name}: {page.outcome(result)}", flush=True)
        except queue.Empty:
            pass
        finally:
            if worker is not None:
                worker.close()

    with ThreadPoolExecutor(jobs) as executor:
        for future in [executor.submit(work) for _ in range(jobs)]:
            future.result()


class _Worker:
    def __init__(self) -> None:
        quiet = {"TORCH_SPYRE_DOWNCAST_WARN": "0", "TORCH_SPYRE_FALLBACK_WARN": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.models.sweep.worker"],
            env={**os.environ, **quiet},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self.lives, self.checked = True, 0
        if "raised" in (message := self._receive(START)):
            raise RuntimeError(
                f"A worker does not start: {message['raised']}. See python -m tests.models.sweep.worker."
            )

    def check(self, name: str) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(name.encode() + b"\n")
        result = self._receive(SECONDS)
        self.checked += 1
        if self.checked == AT_A_TIME:
            self.close()
        return result

    def _receive(self, seconds: float) -> dict[str, Any]:
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            self.close()
            return {"raised": f"took longer than {seconds:.0f} s"}
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.lives, code = False, self.process.wait()
        return {"raised": f"killed by signal {-code}" if code < 0 else f"ended with status {code}"}

    def close(self) -> None:
        self.lives = False
        self.process.kill()
        self.process.wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.models.sweep", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="model types, as in config.json; all if there are none"
    )
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="a part of all")
    parser.add_argument("--json", type=Path, default=ROOT / "build/sweep.jsonl", help="where results are kept")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--fresh", action="store_true", help="run what has a result as well")
    parser.add_argument("--counts", type=Path, help="where to write how many are right, wrong and were not made")
    parser.add_argument("--page", action="store_true", help="write the table of docs/models.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
