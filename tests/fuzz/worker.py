"""A process that runs programs, one per line of its input, and answers a line each. Whoever crashes it is known."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from tests import workers
from tests.fuzz.execute import Failure
from tests.fuzz.program import Program, from_json

PATIENCE = 300.0  # seconds for one program, on a machine that may be busy


def main() -> None:
    """Requests are seeds or programs; answers have the failure, if any, its program, and what the summary counts."""
    requests = workers.Requests()
    import torch

    from tests.fuzz.execute import check
    from tests.fuzz.generate import generate

    torch.set_num_threads(1)
    torch.spyre.set_downcast_warning(False)
    for request in requests:
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
        requests.answer(answer)


class Worker:
    """Such a process, in one mode of the card."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        # Kernels are hardly ever met again: writing them all to disk would take longer than it saves.
        self._process = workers.Worker("tests.fuzz.worker", environment={"SPYRE_CARD": mode, "SPYRE_KERNEL_CACHE": "0"})

    def run_seed(self, seed: int, plans: str = "") -> dict[str, Any]:
        return self._ask({"seed": seed, "plans": plans})

    def run(self, program: Program) -> dict[str, Any]:
        return self._ask({"program": json.loads(program.to_json())})

    def close(self) -> None:
        self._process.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._process.ask(request, PATIENCE)
        except workers.Lost as lost:
            return {"failure": asdict(Failure(lost.kind, str(lost)))}


def failure_of(answer: dict[str, Any]) -> Failure | None:
    return Failure(**answer["failure"]) if "failure" in answer else None


if __name__ == "__main__":
    main()
