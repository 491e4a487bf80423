"""A process that runs programs, one per line of its input, and answers a line each. Whoever crashes it is known."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from dataclasses import asdict
from typing import Any

from tests.fuzz.execute import Failure
from tests.fuzz.program import Program, from_json

PATIENCE = 300.0  # seconds for one program, on a machine that may be busy


def main() -> None:
    """Requests are seeds or programs; answers have the failure, if any, its program, and what the summary counts."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what programs print
    import torch

    from tests.fuzz.execute import check
    from tests.fuzz.generate import generate

    torch.set_num_threads(1)
    torch.spyre.set_downcast_warning(False)
    for line in sys.stdin:
        request = json.loads(line)
        if "seed" in request:
            program = generate(request["seed"], request["plans"])
        else:
            program = from_json(json.dumps(request["program"]))
        torch.spyre.reset_fallback_counts()
        checked = check(program)
        answer: dict[str, Any] = {"steps": len(program.steps), "fallbacks": torch.spyre.fallback_counts()}
        answer |= {"hinted": checked.hinted, "faster": checked.faster, "bits": checked.bits}
        if checked.failure is not None:
            answer |= {"failure": asdict(checked.failure), "program": json.loads(program.to_json())}
        print(json.dumps(answer), file=answers)


class Worker:
    """Such a process, started when it is first needed and again after a crash."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()

    def run_seed(self, seed: int, plans: str = "") -> dict[str, Any]:
        return self._ask({"seed": seed, "plans": plans})

    def run(self, program: Program) -> dict[str, Any]:
        return self._ask({"program": json.loads(program.to_json())})

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            self.close()
            return {"failure": asdict(Failure("hang", f"no answer in {PATIENCE:.0f} seconds"))}
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._process = None
        return {"failure": asdict(Failure("crash", f"the process ended with code {code}"))}

    def _start(self) -> None:
        # Kernels are hardly ever met again: writing them all to disk would take longer than it saves.
        environment = {**os.environ, "SPYRE_CARD": self.mode, "SPYRE_KERNEL_CACHE": "0", "PYTHONPATH": os.getcwd()}
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker"],
            env=environment,
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


def failure_of(answer: dict[str, Any]) -> Failure | None:
    return Failure(**answer["failure"]) if "failure" in answer else None


if __name__ == "__main__":
    main()
