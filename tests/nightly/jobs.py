"""What runs at night, as a table: all that is too long for ``make test``, in parts that one machine does in a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Job:
    """A command in the root of the repository, and how long it is expected to take.

    ``{result}`` in the command is the file that it writes its counts to: JUnit's XML, or JSON with ``passed``,
    ``failed`` and ``skipped``. A command without one counts as one test, by its exit code. ``{kept}`` is a file of the
    command's own, which it finds again after an interruption. ``needs``: a file without which there is nothing to run.
    """

    name: str
    layer: str
    command: tuple[str, ...]
    minutes: float
    needs: str = ""


# What other jobs run: with these options, the slow tests are those that have no job of their own.
_ELSEWHERE = (
    "--ignore=tests/generic",
    "--ignore=tests/ops",
    "--ignore=tests/distributed/torch_suite",
    "--deselect",
    "tests/fuzz/test_fuzz.py::test_plans_change_no_result[200-all]",
)


def table(jobs: int, night: int = 0) -> list[Job]:
    """Every job; each may use so many processes.

    Random programs and damages are others for each ``night``: a commit has always the same, and many nights see more
    than one long one.
    """
    return [
        Job("card tests", "card", ("build/dev/card_tests",), 1),
        *_pytest("slow tests", "tests", 6, 4, jobs, "-m", "slow", *_ELSEWHERE),
        *_pytest("op grid", "tests/ops", 3, 4.5, jobs, "-m", "slow"),
        *_pytest("generic ops", "tests/generic", 2, 4, jobs),
        Job("coverage", "coverage", _python("tests.coverage", "--jobs", str(jobs), "--counts", "{result}"), 15),
        *_process_groups(2, 4),
        *_fuzz(5, 1000, jobs, night * 10_000),
        *_plans(2, 50, jobs, night * 10_000),
        *_mutation(5, 10_000, jobs, night),
        Job("models", "models", _python("tests.models.tracker", "--counts", "{result}"), 8),
        *_sweep(2, jobs),
    ]


def _python(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *arguments)


def _pytest(layer: str, where: str, parts: int, minutes: float, jobs: int, *more: str) -> Iterator[Job]:
    processes = ("--numprocesses", str(jobs), "--dist", "worksteal", "--junitxml", "{result}")
    for part in range(1, parts + 1):
        chosen = ("-p", "tests.nightly.part", "--part", f"{part}/{parts}", *more)
        yield Job(f"{layer} {part}", layer, _python("pytest", where, "-q", *processes, *chosen), minutes)


def _process_groups(*ranks: int) -> Iterator[Job]:
    for size in ranks:
        chosen = ("--ranks", str(size), "--counts", "{result}")
        yield Job(f"process groups {size}", "process groups", _python("tests.distributed.torch_suite", *chosen), 5)


def _fuzz(parts: int, count: int, jobs: int, first: int) -> Iterator[Job]:
    for part in range(parts):
        chosen = ("--count", str(count), "--seed", str(first + part * count), "--jobs", str(jobs), "--json", "{result}")
        yield Job(f"fuzz {part + 1}", "fuzz", _python("tests.fuzz", *chosen), 3)


def _plans(parts: int, count: int, jobs: int, first: int) -> Iterator[Job]:
    for part in range(parts):
        chosen = ("--count", str(count), "--seed", str(first + part * count), "--jobs", str(jobs), "--json", "{result}")
        yield Job(f"fuzz plans {part + 1}", "fuzz plans", _python("tests.fuzz", "--plans", *chosen), 4.5)


def _mutation(parts: int, count: int, jobs: int, seed: int) -> Iterator[Job]:
    for part in range(parts):
        cases = ("--count", str(count), "--first", str(part * count), "--seed", str(seed))
        chosen = (*cases, "--jobs", str(max(jobs // 2, 1)), "--json", "{result}")  # of pairs of processes
        yield Job(f"mutation {part + 1}", "mutation", _python("tests.mutation", *chosen), 2.5)


def _sweep(parts: int, jobs: int) -> Iterator[Job]:
    for part in range(1, parts + 1):
        chosen = ("--shard", f"{part}/{parts}", "--jobs", str(jobs), "--json", "{kept}", "--counts", "{result}")
        yield Job(f"architectures {part}", "architectures", _python("tests.models.sweep", *chosen), 5)
