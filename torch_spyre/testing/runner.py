"""Runs the files of a configuration, a process for each, and adds up what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import torch

from .configuration import ConfigurationError, load

OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
RESTARTS = 100  # of one file, after crashes


@dataclass(frozen=True)
class Options:
    """``timeout``: seconds for each test; 0: no limit. ``more``: further arguments of pytest."""

    pytorch_root: Path | None = None
    device_root: Path | None = None
    marked: str = ""
    named: str = ""
    part: str = "1/1"
    processes: int = 0
    timeout: float = 0
    collect_only: bool = False
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    id: str
    outcome: str
    mode: str = ""
    seconds: float = 0.0
    text: str = ""


@dataclass
class FileResult:
    """How the tests of a file went; ``problem``: why there are none, or not all."""

    path: str
    outcomes: list[Outcome] = field(default_factory=list)
    problem: str = ""

    def counts(self) -> Counter[str]:
        return Counter(each.outcome for each in self.outcomes)

    def mandatory(self) -> tuple[int, int]:
        """Of the tests that have to pass: how many did, and how many there are, without those that skip themselves."""
        wanted = [each for each in self.outcomes if each.mode == "mandatory_success" and each.outcome != "skipped"]
        return sum(each.outcome == "passed" for each in wanted), len(wanted)

    @property
    def ok(self) -> bool:
        return not self.problem and not any(each.outcome in ("failed", "error") for each in self.outcomes)


def run(configuration: Path, options: Options, tell: Callable[[str], None] = print) -> list[FileResult]:
    """Of every file of the configuration, in its order. Tests that end their process count as failed, and the file goes
    on behind them."""
    environment = _environment(configuration, options)
    os.environ.update({name: environment[name] for name in environment if name.endswith("_ROOT")})
    loaded = load(configuration)
    for name in loaded.unknown():
        tell(f"{configuration}: {name} means nothing here and is left out of account")
    results = []
    for i, file in enumerate(loaded.test_suite_config.files, start=1):
        tell(f"{i} of {len(loaded.test_suite_config.files)}: {file.path}")
        path = file.place()
        if not path.is_file():
            results.append(FileResult(file.path, problem=f"there is no {path}"))
            continue
        with tempfile.TemporaryDirectory(prefix="spyre-tests-") as folder:
            results.append(_run_file(file.path, path, Path(folder), environment, options, tell))
        tell(_line(results[-1]))
    return results


def _environment(configuration: Path, options: Options) -> dict[str, str]:
    own = Path(__file__).parents[2]
    environment = {
        "TORCH_DEVICE_ROOT": str(options.device_root or own),
        "TORCH_SPYRE_ROOT": str(options.device_root or own),
        "TORCH_PACKAGE_ROOT": str(Path(torch.__file__).parent),
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": "privateuse1",
        **os.environ,
        "PYTORCH_TEST_CONFIG": str(configuration.resolve()),
    }
    if options.pytorch_root is not None:
        if not (options.pytorch_root / "test").is_dir():
            raise ConfigurationError(
                f"{options.pytorch_root} has no folder test: it is no copy of PyTorch's repository"
            )
        environment["TORCH_ROOT"] = str(options.pytorch_root.resolve())
    if options.device_root is not None:
        environment["TORCH_DEVICE_ROOT"] = environment["TORCH_SPYRE_ROOT"] = str(options.device_root.resolve())
    return environment


def _run_file(
    name: str, path: Path, folder: Path, environment: dict[str, str], options: Options, tell: Callable[[str], None]
) -> FileResult:
    result, noted, before = FileResult(name), folder / "results", -1
    for _ in range(RESTARTS):
        process = subprocess.run(_command(path, noted, options), cwd=path.parent, env=_with_path(environment, path))
        if options.collect_only:
            return result
        notes = [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []
        result.outcomes = _outcomes(notes, process.returncode)
        crashed = len(notes) > before and bool(notes) and notes[-1]["outcome"] == "begun"
        if process.returncode in (0, 1, 5) and not crashed:  # all passed, some failed, none collected
            return result
        if not crashed:  # it was interrupted, could not collect, or does not get any further
            break
        before = len(notes)
        tell(f"{notes[-1]['id']} ended the process; going on behind it")
    result.problem = f"pytest ended with code {process.returncode}"
    return result


def _command(path: Path, noted: Path, options: Options) -> list[str]:
    command = [sys.executable, "-m", "pytest", str(path), "-q", "-c", os.devnull, "--rootdir", str(path.parent)]
    # PyTorch's conftest is for its own machines, and asks for plug-ins of theirs.
    command += ["--noconftest", "-p", "no:cacheprovider", "-p", "torch_spyre.testing.plugin", "--tb=short"]
    command += ["--results", str(noted), "--part", options.part]
    command += ["-m", options.marked] if options.marked else []
    command += ["-k", options.named] if options.named else []
    command += ["--numprocesses", str(options.processes), "--dist", "worksteal"] if options.processes else []
    command += ["--timeout", str(options.timeout)] if options.timeout else []
    command += ["--collect-only"] if options.collect_only else []
    return [*command, *options.more]


def _with_path(environment: dict[str, str], path: Path) -> dict[str, str]:
    """PyTorch's tests import their neighbours by name."""
    paths = [str(path.parent)]
    if root := environment.get("TORCH_ROOT"):
        paths.append(str(Path(root, "test")))
    return environment | {"PYTHONPATH": os.pathsep.join([*paths, *filter(None, [environment.get("PYTHONPATH")])])}


def _outcomes(notes: Sequence[dict[str, str]], code: int) -> list[Outcome]:
    """The last note of each test; one that began and did not end has ended its process."""
    found: dict[str, Outcome] = {}
    for note in notes:
        if note["outcome"] == "begun":
            text = f"the process ended in this test, with code {code}"
            found[note["id"]] = Outcome(note["id"], "error", note["mode"], text=text)
        else:
            made = Outcome(**note)  # type: ignore[arg-type]
            known = found.get(made.id)
            # An error of a teardown comes behind the outcome of its test.
            if known is None or known.outcome == "error" or made.outcome == "error":
                found[made.id] = made
    return list(found.values())


# --- what happened, in three forms


def text(results: Sequence[FileResult]) -> str:
    width = max([len(Path(each.path).name) for each in results] + [10])
    lines = [f"{'file':<{width}}" + "".join(f"{name:>9}" for name in OUTCOMES) + f"{'must pass':>18}{'seconds':>9}"]
    lines += [_line(each, width) for each in results]
    passed, wanted = (
        (sum(part) for part in zip(*(each.mandatory() for each in results), strict=True)) if results else (0, 0)
    )
    share = f", {100 * passed / wanted:.2f} %" if wanted else ""
    lines.append(f"{passed} of {wanted} tests that have to pass did{share}")
    for each in results:
        lines += [f"{each.path}: {each.problem}"] if each.problem else []
        lines += [f"{one.outcome.upper()} {one.id}" for one in each.outcomes if one.outcome in ("failed", "error")]
    return "\n".join(lines)


def _line(result: FileResult, width: int = 10) -> str:
    counts, (passed, wanted) = result.counts(), result.mandatory()
    numbers = "".join(f"{counts[name]:>9}" for name in OUTCOMES)
    seconds = sum(each.seconds for each in result.outcomes)
    return f"{Path(result.path).name:<{width}}{numbers}{f'{passed} of {wanted}':>18}{seconds:>9.1f}"


def as_json(results: Sequence[FileResult]) -> str:
    files = []
    for each in results:
        passed, wanted = each.mandatory()
        counts = {name: each.counts()[name] for name in OUTCOMES}
        failed = [{"id": one.id, "text": one.text} for one in each.outcomes if one.outcome in ("failed", "error")]
        files.append({"path": each.path, **counts, "must_pass": wanted, "must_pass_passed": passed})
        files[-1] |= {"problem": each.problem, "failures": failed}
    total: Counter[str] = sum((each.counts() for each in results), Counter())
    # The names that a nightly job's counts have.
    summary = {"passed": total["passed"] + total["xfailed"] + total["xpassed"], "skipped": total["skipped"]}
    summary["failed"] = total["failed"] + total["error"] + sum(bool(each.problem) for each in results)
    return json.dumps({**summary, "files": files}, indent=1)


def as_junit(results: Sequence[FileResult]) -> str:
    root = ElementTree.Element("testsuites")
    for each in results:
        counts = each.counts()
        count = len(each.outcomes) + bool(each.problem)
        suite = ElementTree.SubElement(root, "testsuite", name=each.path, tests=str(count))
        suite.set("failures", str(counts["failed"]))
        suite.set("errors", str(counts["error"] + bool(each.problem)))
        suite.set("skipped", str(counts["skipped"] + counts["xfailed"]))
        for one in each.outcomes:
            where, _, name = one.id.replace("/", ".").rpartition("::")
            case = ElementTree.SubElement(suite, "testcase", classname=where.replace(".py::", "."), name=name)
            case.set("time", f"{one.seconds:.3f}")
            kind = {"failed": "failure", "error": "error", "skipped": "skipped", "xfailed": "skipped"}.get(one.outcome)
            if kind is not None:
                last = one.text.strip().splitlines()[-1:] or [one.outcome]
                ElementTree.SubElement(case, kind, message=_printable(last[0])).text = _printable(one.text)
        if each.problem:
            case = ElementTree.SubElement(suite, "testcase", classname=each.path, name="the file")
            ElementTree.SubElement(case, "error", message=each.problem)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """XML has no control characters."""
    return "".join(letter for letter in text if letter >= " " or letter in "\n\t")
