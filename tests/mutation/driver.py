"""Many cases over workers of both modes, and what failed of them."""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutation import cases
from tests.workers import Lost, Worker

START = 600.0  # seconds until a worker is there, on a machine that may be busy
DEADLINE = 120.0  # seconds for a case, which may be as large as limits allow, on a machine that is busy
MODES = ("run", "strict")
OUT = Path("build/mutation")  # where failing inputs go
# A card of a gigabyte, as docs/security.md advises: memory that a case asks for is refused before it is a burden.
ENVIRONMENT = {"SPYRE_KERNEL_CACHE": "0", "HF_HUB_OFFLINE": "1", "SPYRE_MEMORY_GB": "1"}


@dataclass(frozen=True)
class Failure:
    """``kind``: crash, hang, memory, error (one that is not meant for it), values (that depend on what ran before), or
    modes (values that depend on one of run and strict)."""

    case: cases.Case
    kind: str
    what: str
    mode: str

    def cause(self) -> str:
        """What failures of the same cause probably share."""
        words = re.sub(r"['\"].*?['\"]|-?\d+(\.\d+)?(e[+-]?\d+)?", "#", self.what.split("\n")[0])
        return f"{self.case.kind}, {self.mode}: {self.kind}: {words[:160]}"


@dataclass
class Summary:
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)  # by kind of input
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        return sum(counter.total() for counter in self.outcomes.values())

    def to_json(self) -> str:
        failed = len(self.failures)
        return json.dumps({"passed": self.count - failed, "failed": failed, "skipped": 0})

    def __str__(self) -> str:
        lines = [f"{self.count} cases, {self.seconds:.0f} s: {len(self.failures)} failures"]
        for kind, counter in self.outcomes.items():
            lines.append(f"  {kind:<10} " + ", ".join(f"{name} {n}" for name, n in sorted(counter.items())))
        causes = Counter(failure.cause() for failure in self.failures)
        lines += [f"{n:5} x {cause}" for cause, n in causes.most_common()]
        return "\n".join(lines)


Progress = Callable[[Summary, Failure | None], None]


def run(numbers: Iterable[int], seed: int, kind: str = "", jobs: int = 1, progress: Progress | None = None) -> Summary:
    """The cases of these numbers, of one kind or of all; ``jobs`` pairs of workers take turns at them."""
    summary, lock, start = Summary(), threading.Lock(), time.monotonic()
    waiting = iter(list(numbers))
    with tempfile.TemporaryDirectory(prefix="spyre-mutation-") as folder:
        corpus = Path(folder, "seeds.json")
        _make_corpus(corpus)

        def work() -> None:
            pair = Pair(Path(folder), corpus)
            try:
                while True:
                    with lock:
                        number = next(waiting, None)
                    if number is None:
                        return
                    of = kind or cases.kind_of(number)
                    outcome, failure = pair.run({"kind": of, "seed": seed, "number": number})
                    with lock:
                        summary.outcomes.setdefault(of, Counter())[outcome] += 1
                        summary.seconds = time.monotonic() - start
                        if failure is not None:
                            summary.failures.append(failure)
                        if progress is not None:
                            progress(summary, failure)
            finally:
                pair.close()

        threads = [threading.Thread(target=work) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    summary.failures.sort(key=lambda failure: failure.case.number)
    return summary


def replay(case: cases.Case) -> Failure | None:
    """A saved case alone, in fresh processes."""
    with tempfile.TemporaryDirectory(prefix="spyre-mutation-") as folder:
        pair = Pair(Path(folder), None)
        try:
            return pair.run({"kind": case.kind, "number": case.number, "input": cases.dumps(case.input)})[1]
        finally:
            pair.close()


def _make_corpus(path: Path) -> None:
    worker = _worker("run", path.parent)
    try:
        worker.ask({"corpus": str(path)}, START)
    finally:
        worker.close()


def _worker(mode: str, folder: Path) -> Worker:
    """Leaves nothing behind but what is in the folder, however it ends."""
    places = {"TMPDIR": str(folder), "HF_HOME": str(folder / "huggingface")}
    return Worker("tests.mutation.worker", environment=ENVIRONMENT | places | {"SPYRE_CARD": mode})


class Pair:
    """A worker of each mode, which do the same."""

    def __init__(self, folder: Path, corpus: Path | None) -> None:
        self._corpus = corpus
        self._workers = {mode: _worker(mode, folder) for mode in MODES}
        self._ready: set[str] = set()

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def run(self, request: dict[str, Any]) -> tuple[str, Failure | None]:
        """The outcome, and the failure if it is one."""
        for mode in MODES:
            self._prepare(mode)
            self._workers[mode].send(request)
        answers = {mode: self._receive(mode) for mode in MODES}
        for mode, answer in answers.items():
            if answer["outcome"] == "failure":
                case = self._case(request, answers)
                return "failure", Failure(case, answer["kind"], answer["what"], mode)
        bits = [answer.get("bits") for answer in answers.values()]
        if None not in bits and bits[0] != bits[1]:
            case = self._case(request, answers)
            return "failure", Failure(case, "modes", "run and strict mode give other bits", "both")
        if answers["run"]["outcome"] != answers["strict"]["outcome"]:
            return "refused by one mode", None
        return answers["run"]["outcome"], None

    def _prepare(self, mode: str) -> None:
        if mode not in self._ready and self._corpus is not None:
            self._workers[mode].ask({"seeds": str(self._corpus)}, START)
            self._ready.add(mode)

    def _receive(self, mode: str) -> dict[str, Any]:
        try:
            return self._workers[mode].receive(DEADLINE if self._corpus else START)
        except Lost as lost:
            self._ready.discard(mode)
            return {"outcome": "failure", "kind": lost.kind, "what": str(lost)}

    def _case(self, request: dict[str, Any], answers: dict[str, Any]) -> cases.Case:
        """The input itself: from the request, an answer, or made again where nobody is left to say."""
        text = next((each["input"] for each in [request, *answers.values()] if "input" in each), None)
        if text is None:
            assert self._corpus is not None
            corpus = cases.loads(self._corpus.read_text())
            return cases.make(corpus, request["kind"], request["seed"], request["number"])
        return cases.Case(request["kind"], request["number"], cases.loads(text))


def report(summary: Summary, directory: Path) -> list[str]:
    """Saves failing inputs, few of each cause, and gives the commands that run them again."""
    seen: Counter[str] = Counter()
    lines = []
    for failure in summary.failures:
        seen[failure.cause()] += 1
        if seen[failure.cause()] <= 3:
            path = directory / f"{failure.case.kind}_{failure.case.number}.json"
            cases.save(path, failure.case, failure.kind, failure.what)
            lines.append(f"{failure.mode}: {failure.kind}: {failure.what}\n  python -m tests.mutation --replay {path}")
    return lines
