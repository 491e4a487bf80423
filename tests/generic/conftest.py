"""Generated tests get their marks from ``suites.toml``, and the rate at which they pass is reported."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.generic.suites import Case, name_of, suites

os.environ.setdefault("PYTORCH_PRINT_REPRO_ON_FAILURE", "0")  # it names the last sample made, not the one that failed

CASES = pytest.StashKey[list[Case]]()


def generated(item: pytest.Item) -> Case | None:
    """What torch's device-type machinery made the test of; its parameters are the default of the test's argument."""
    function = getattr(item, "function", None)
    given = getattr(function, "__defaults__", None)
    if not given or not isinstance(given[0], dict):
        return None
    info = given[0].get("op") or given[0].get("module_info")
    dtype = given[0].get("dtype")
    return info and Case(function.__name__, name_of(info), dtype and str(dtype).removeprefix("torch."))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks; and an order, which sets of dtypes have not."""
    tests = {item: test for item in items if (test := generated(item))}
    ordered = iter(sorted(tests, key=lambda item: item.nodeid))
    items[:] = [next(ordered) if item in tests else item for item in items]
    config.stash[CASES] = list(tests.values())
    for item, test in tests.items():
        item.user_properties.append(("template", test.template))
        if not suites().is_quick(test):
            item.add_marker(pytest.mark.slow)
        for rule in suites().skip:
            if rule.covers(test):
                item.add_marker(pytest.mark.skip(reason=rule.reason))
        for rule in suites().xfail:
            if rule.covers(test):
                item.add_marker(pytest.mark.xfail(reason=rule.reason, strict=True))


@pytest.fixture(autouse=True)
def quiet_fallback() -> Iterator[None]:
    """Ops may run on the CPU here; whether they do is another suite's question."""
    with torch.spyre.fallback("count"):
        yield


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> list[Case]:
    """All that was generated, before any was deselected."""
    return request.config.stash[CASES]


def outcomes(reporter: Any) -> dict[str, Counter]:
    """How the generated tests went, by template."""
    counts: dict[str, Counter] = {}
    for outcome in ("passed", "failed", "xfailed", "skipped"):
        for report in reporter.stats.get(outcome, []):
            template = dict(getattr(report, "user_properties", ())).get("template")
            if template:
                counts.setdefault(template, Counter())[outcome] += 1
    return counts


def pass_rate(count: Counter) -> float:
    included = count.total() - count["skipped"]
    return count["passed"] / included if included else 1.0


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = outcomes(terminalreporter)
    if not counts:
        return
    write = terminalreporter.write_line
    terminalreporter.section("device-generic suites")
    write(f"{'template':28}{'passed':>8}{'xfailed':>9}{'failed':>8}{'skipped':>9}{'pass rate':>11}")
    for name, count in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        numbers = f"{count['passed']:8}{count['xfailed']:9}{count['failed']:8}{count['skipped']:9}"
        write(f"{name:28}{numbers}{pass_rate(count):11.1%}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A whole run below the rate that suites.toml demands has failed, whatever was expected to fail."""
    option, reporter = session.config.option, session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or option.keyword or option.markexpr or any("::" in each for each in session.config.args):
        return
    counts = outcomes(reporter)
    if set(counts) == set(suites().templates) and pass_rate(sum(counts.values(), Counter())) < suites().least_pass_rate:
        session.exitstatus = max(int(exitstatus), int(pytest.ExitCode.TESTS_FAILED))
