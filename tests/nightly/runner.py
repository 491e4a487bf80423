"""Runs jobs one after the other and notes each that ended, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from tests.nightly.jobs import ROOT, Job

PATIENCE = 6.0  # times the expected duration, and half an hour, until a job counts as hanging
GENERATED = ("docs/supported_operations.md", "docs/models.md")  # jobs write these: a run goes on beside their changes


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    ``ok`` is what its command says: some tolerate a few failures and still end well. ``note`` says where to look.
    """

    name: str
    layer: str
    passed: int
    failed: int
    skipped: int
    minutes: float
    note: str = ""
    ok: bool = True


def commit(root: Path = ROOT) -> str:
    """What is tested: the commit, and a hash of what was changed since, apart from pages that jobs write."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True).stdout

    written = [f":(exclude){page}" for page in GENERATED]
    changes = git("diff", "HEAD", "--", ".", *written) + git("ls-files", "--others", "--exclude-standard")
    name = git("rev-parse", "--short=12", "HEAD").decode().strip()
    return f"{name}-{hashlib.sha256(changes).hexdigest()[:8]}" if changes else name


def shard(jobs: Sequence[Job], part: int, parts: int) -> list[Job]:
    """The jobs of one of several machines: the longest first, each to the machine that has least to do."""
    loads: list[tuple[float, int, list[Job]]] = [(0.0, i, []) for i in range(parts)]
    for job in sorted(jobs, key=lambda job: (-job.minutes, job.name)):
        load, i, mine = min(loads, key=lambda each: each[:2])
        mine.append(job)
        loads[i] = (load + job.minutes, i, mine)
    return loads[part - 1][2]


def run(
    jobs: Sequence[Job], state: Path, tell: Callable[[str], None], retry: bool = False, root: Path = ROOT
) -> list[Outcome]:
    """Outcomes of all jobs, those that ended before included; with ``retry``, what failed is run again."""
    state.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for i, job in enumerate(jobs, start=1):
        outcome = finished(job, state)
        if outcome is not None and retry and not outcome.ok:
            _file(job, state, ".kept").unlink(missing_ok=True)
            outcome = None
        if outcome is None:
            tell(f"{i} of {len(jobs)}: {job.name}, about {job.minutes:g} min")
            outcome = _run(job, state, root)
            _file(job, state, ".json").write_text(json.dumps(asdict(outcome)))
        outcomes.append(outcome)
    return outcomes


def finished(job: Job, state: Path) -> Outcome | None:
    """How a job ended in an earlier run."""
    try:
        return Outcome(**json.loads(_file(job, state, ".json").read_text()))
    except (OSError, ValueError, TypeError):  # there is none, or writing it was interrupted
        return None


def _file(job: Job, state: Path, suffix: str) -> Path:
    return state / (job.name.replace(" ", "_") + suffix)


def _run(job: Job, state: Path, root: Path) -> Outcome:
    if job.needs and not (root / job.needs).exists():
        return Outcome(job.name, job.layer, 0, 0, 1, 0.0, f"there is no {job.needs}")
    kept = _file(job, state, ".kept")
    result, log = _file(job, state, ".result"), _file(job, state, ".log")
    result.unlink(missing_ok=True)
    command = [word.replace("{result}", str(result)).replace("{kept}", str(kept)) for word in job.command]
    start = time.monotonic()
    process = None
    with log.open("wb") as output:
        try:
            # A signal that came between the start of the process and the note of it here would leave it behind.
            with _signals_held_back() as before:
                process = subprocess.Popen(
                    command,
                    cwd=root,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    preexec_fn=partial(signal.pthread_sigmask, signal.SIG_SETMASK, before),
                )
            code, late = process.wait(60 * (30 + PATIENCE * job.minutes)), False
        except subprocess.TimeoutExpired:
            late = True
        finally:
            if process is not None:
                _end(process)
    minutes = (time.monotonic() - start) / 60
    if late:
        return Outcome(job.name, job.layer, 0, 1, 0, minutes, f"not done after {minutes:.0f} minutes: {log}", False)
    passed, failed, skipped = _counts(result) or (int(code == 0), 0, 0)
    note = str(log) if failed else ""
    if code < 0:
        note = f"killed by {signal.Signals(-code).name}: {log}"
    elif code and not failed:
        note = f"ended with code {code}: {log}"
    return Outcome(job.name, job.layer, passed, max(failed, int(code != 0)), skipped, minutes, note, code == 0)


@contextmanager
def _signals_held_back() -> Iterator[set[int]]:
    """Signals that end this program wait until the end of the block, which is given those that waited before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _counts(result: Path) -> tuple[int, int, int] | None:
    """Passed, failed, skipped, as a job wrote them; None if it did not, or was interrupted over it."""
    try:
        text = result.read_text()
        if not text.lstrip().startswith("<"):
            facts = json.loads(text)
            return int(facts["passed"]), int(facts["failed"]), int(facts["skipped"])
        suites = list(ElementTree.fromstring(text).iter("testsuite"))
    except (OSError, ValueError, KeyError, TypeError, ElementTree.ParseError):
        return None
    tests, errors, failures, skipped = (
        sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "errors", "failures", "skipped")
    )
    return tests - errors - failures - skipped, errors + failures, skipped
