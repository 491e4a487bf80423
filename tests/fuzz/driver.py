"""Many programs over a few workers, and what failed of them."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace

from tests.fuzz.execute import Failure
from tests.fuzz.generate import generate, settings_of
from tests.fuzz.program import Program, from_json
from tests.fuzz.shrink import shrink
from tests.fuzz.worker import Worker, failure_of

CHUNK = 50  # programs of the same settings that one worker runs in a row, sharing their kernels
OTHER = {"run": "strict", "strict": "run"}  # modes


@dataclass(frozen=True)
class Found:
    """A failure of a program; not ``alone`` if it passes in a fresh process, after no other."""

    seed: int
    program: Program
    failure: Failure
    alone: bool = True


@dataclass
class Summary:
    count: int = 0
    steps: int = 0
    compiled: int = 0
    refused: int = 0  # that PyTorch cannot compile for the CPU either
    hinted: int = 0  # with hints that are met
    faster: int = 0  # that LX planning makes faster
    seconds: float = 0.0
    fallbacks: Counter[str] = field(default_factory=Counter)
    settings: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)

    def to_json(self) -> str:
        failed = len(self.found)
        return json.dumps({"passed": self.count - failed - self.refused, "failed": failed, "skipped": self.refused})

    def __str__(self) -> str:
        lines = [
            f"{self.count} programs ({self.compiled} compiled), {self.steps} steps, {self.seconds:.0f} s: "
            f"{len(self.found)} failures",
            "settings: " + ", ".join(f"{name} {n}" for name, n in sorted(self.settings.items())),
        ]
        if self.refused:
            lines.append(f"PyTorch itself refuses to compile {self.refused}, or gets them wrong")
        if self.faster:
            lines.append(f"LX planning makes {self.faster} faster; hints are met in {self.hinted}")
        if self.fallbacks:
            lines.append("on the CPU: " + ", ".join(f"{op} {n}" for op, n in self.fallbacks.most_common()))
        return "\n".join(lines)


def fuzz(
    seeds: Iterable[int], jobs: int, progress: Callable[[Summary, bool], None] | None = None, plans: str = ""
) -> Summary:
    """Run the programs of these seeds; failures are as they were found. ``progress`` hears of each.

    ``plans``: those programs that are compiled with several plans, "few" or "all" of them, and run in both modes.
    """
    summary, lock, start = Summary(), threading.Lock(), time.monotonic()
    chunks = list(_chunks(seeds, plans))

    def work() -> None:
        worker, other = Worker("run"), Worker("strict")
        try:
            while chunk := _take(chunks, worker.mode, lock, plans):
                if settings_of(chunk[0], plans).mode != worker.mode:
                    worker, other = other, worker
                    if not plans:
                        other.close()
                for seed in chunk:
                    answer = worker.run_seed(seed, plans)
                    if plans:
                        answer = _compared(answer, other.run_seed(seed, plans))
                    with lock:
                        before = len(summary.found)
                        _count(summary, seed, answer, plans)
                        summary.seconds = time.monotonic() - start
                        if progress is not None:
                            progress(summary, len(summary.found) > before)
        finally:
            worker.close()
            other.close()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    summary.found.sort(key=lambda found: found.seed)
    return summary


def _compared(answer: dict, other: dict) -> dict:
    """The answer of one mode, with a failure if that of the other one has one, or other bits."""
    if "failure" in answer or "failure" in other:
        return answer if "failure" in answer else other
    if answer["bits"] != other["bits"]:
        return answer | {"failure": asdict(Failure("modes", "run and strict mode give other bits"))}
    return answer


def _chunks(seeds: Iterable[int], plans: str) -> Iterator[list[int]]:
    def alike(seed: int) -> tuple:
        settings = settings_of(seed, plans)
        return settings.mode, settings.cores, settings.lx

    for _, group in itertools.groupby(sorted(seeds, key=alike), key=alike):
        rest = list(group)
        while rest:
            yield rest[:CHUNK]
            rest = rest[CHUNK:]


def _take(chunks: list[list[int]], mode: str, lock: threading.Lock, plans: str) -> list[int]:
    """The next chunk, in the worker's mode while there is one."""
    with lock:
        at = next((i for i, chunk in enumerate(chunks) if settings_of(chunk[0], plans).mode == mode), 0)
        return chunks.pop(at) if chunks else []


def _count(summary: Summary, seed: int, answer: dict, plans: str) -> None:
    settings = settings_of(seed, plans)
    summary.hinted += answer.get("hinted", False)
    summary.faster += answer.get("faster", False)
    summary.count += 1
    summary.steps += answer.get("steps", 0)
    summary.compiled += settings.compiled
    summary.fallbacks.update(answer.get("fallbacks", {}))
    for name in (settings.mode, f"{settings.cores} cores", f"LX {settings.lx}"):
        summary.settings[name] += 1
    failure = failure_of(answer)
    if failure is not None and failure.kind == "pytorch":
        summary.refused += 1
    elif failure is not None:
        program = from_json(json.dumps(answer["program"])) if "program" in answer else generate(seed, plans)
        summary.found.append(Found(seed, program, failure))


def shrunk(found: Found) -> Found:
    """The failure again, in processes of its own, by the smallest program that shows it."""
    workers = {mode: Worker(mode) for mode in OTHER}

    def run(program: Program) -> Failure | None:
        mode = program.settings.mode
        answer = workers[mode].run(program)
        if found.program.settings.plans:
            answer = _compared(answer, workers[OTHER[mode]].run(program))
        return failure_of(answer)

    try:
        again = run(found.program)
        if again is None:
            return replace(found, alone=False)
        program, failure = shrink(found.program, again, run)
        return replace(found, program=program, failure=failure)
    finally:
        for worker in workers.values():
            worker.close()
