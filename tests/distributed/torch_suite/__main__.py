"""Run PyTorch's own tests of process groups: ``python -m tests.distributed.torch_suite [--ranks N] [NAME...]``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from tests.distributed.ranks import Ranks

from . import rank
from .exclusions import EXCLUDED
from .rank import Outcome

SECONDS = 150  # a test may take


@dataclass(frozen=True)
class Result:
    """What the ranks say of a test together."""

    name: str
    state: str  # passed, skipped, failed, excluded
    calls: int = 0
    seconds: float = 0
    text: str = ""


class World:
    """Ranks that run test after test; a test that does not end costs the processes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ranks: Ranks | None = None

    def names(self) -> list[str]:
        return self._ranks().run(rank.names)[0]

    def run(self, name: str) -> Result:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            for each in ("barrier", "test_dir"):
                Path(directory, each).mkdir()
            answers = self._ranks().outcomes(rank.run_test, name, directory, seconds=SECONDS)
        outcomes = [Outcome(*answer) if ok else Outcome("failed", 0, answer) for ok, answer in answers]
        if not all(ok for ok, _ in answers):
            self.close()
        states = {each.state for each in outcomes}
        state = next(each for each in ("failed", "passed", "skipped") if each in states)
        texts = dict.fromkeys(each.text for each in outcomes if each.text and each.state == state)
        calls = sum(each.calls for each in outcomes)
        return Result(name, state, calls, time.monotonic() - began, "\n".join(texts))

    def close(self) -> None:
        if self.ranks:
            self.ranks.kill()
        self.ranks = None

    def _ranks(self) -> Ranks:
        if not self.ranks:
            self.ranks = Ranks(self.size, {"AIU_WORLD_SIZE": str(self.size)}, joins=False)
        return self.ranks


def run(size: int, chosen: list[str], show: bool = True) -> list[Result]:
    """All tests of a world of so many ranks, or those that are named."""
    excluded = {name: reason for reason, names in EXCLUDED.items() for name in names}
    world = World(size)
    results = []
    try:
        for name in world.names():
            if chosen and name not in chosen:
                continue
            known = name in excluded and name not in chosen
            result = Result(name, "excluded", text=excluded[name]) if known else world.run(name)
            results.append(result)
            if show:
                last = result.text.strip().splitlines()[-1:] if result.state == "failed" else [result.text[:90]]
                print(f"{result.state:9}{result.calls:6}{result.seconds:7.1f} s  {name}  {last[0]}", flush=True)
            if show and result.state == "failed":
                print(indent(result.text, "    "), flush=True)
    finally:
        world.close()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.distributed.torch_suite")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--counts", help="write numbers of tests to this file, as JSON")
    parser.add_argument("tests", nargs="*", help="names of tests; all if none is given")
    options = parser.parse_args()
    results = run(options.ranks, options.tests)
    counts = Counter(each.state for each in results)
    reached = sum(each.state == "passed" and each.calls > 0 for each in results)
    print(f"{dict(counts)}; {reached} of those that passed have reached spyreccl")
    if options.counts:
        numbers = {state: counts[state] for state in ("passed", "failed", "skipped")}
        Path(options.counts).write_text(json.dumps(numbers))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
