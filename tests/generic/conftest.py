"""Generated tests get their marks from ``suites.toml``, and the rate at which they pass is reported."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.generic.suites import Case, name_of, suites

os.environ.setdefault("PYTORCH_PRINT_REPRO_ON_FAILURE", "0")  # it names the last sample made, not the one that failed

TEST = pytest.StashKey[Case]()
COUNTS = pytest.StashKey[dict[str, Counter]]()


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
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks; and an order, which sets of dtypes have not."""
    tests = {item: test for item in items if (test := generated(item))}
    ordered = iter(sorted(tests, key=lambda item: item.nodeid))
    items[:] = [next(ordered) if item in tests else item for item in items]
    for item, test in tests.items():
        item.stash[TEST] = test
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


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts: dict[str, Counter] = {}
    for outcome in ("passed", "failed", "xfailed", "xpassed", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            template = dict(getattr(report, "user_properties", ())).get("template")
            if template:
                counts.setdefault(template, Counter())[outcome] += 1
    if not counts:
        return
    write = terminalreporter.write_line
    terminalreporter.section("device-generic suites")
    write(f"{'template':24}{'passed':>8}{'xfailed':>9}{'failed':>8}{'skipped':>9}{'pass rate':>11}")
    for name, count in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        included = count.total() - count["skipped"]
        rate = f"{count['passed'] / included:11.1%}" if included else f"{'–':>11}"
        failed = count["failed"] + count["xpassed"]
        write(f"{name:24}{count['passed']:8}{count['xfailed']:9}{failed:8}{count['skipped']:9}{rate}")
