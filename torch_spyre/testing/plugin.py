"""A plugin of pytest: marks tests as the configuration says, and notes how each went.

``PYTORCH_TEST_CONFIG`` names the configuration. Results go, a line for each test that begins or ends, to the file of
``--results``: what a crash of the process leaves behind is complete up to the test that caused it, and a run with the
same file goes on behind it.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from . import device_base
from .configuration import Configuration, File, Test, load

CONFIGURATION = pytest.StashKey[Configuration]()
BYPASS = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torch_spyre.testing")
    group.addoption("--results", type=Path, help="the file that results are noted in")
    group.addoption("--part", default="1/1", help="i/n: the i-th of n parts of the tests")


def pytest_configure(config: pytest.Config) -> None:
    configuration = load(Path(os.environ["PYTORCH_TEST_CONFIG"]))
    config.stash[CONFIGURATION] = configuration
    device_base.install(configuration)
    path = config.getoption("results")
    if path is not None and not hasattr(config, "workerinput"):  # not in the workers of pytest-xdist
        config.pluginmanager.register(Results(path))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.nodeid)  # sets of dtypes have no order, and workers have to agree on one
    for item in items:
        file = config.stash[CONFIGURATION].file_of(item.path)
        if file is not None:
            _mark(config, item, file)
    part, parts = map(int, config.getoption("part").split("/"))
    done = _begun(config.getoption("results"))
    kept = [item for item in items if _crc(item.nodeid) % parts == part - 1 and item.nodeid not in done]
    if len(kept) < len(items):
        chosen = {id(item) for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
        items[:] = kept


def _mark(config: pytest.Config, item: pytest.Item, file: File) -> None:
    of_class = getattr(item, "cls", None)
    # PyTorch's test cases hang wrappers on their instances, which have no defaults.
    function = getattr(of_class, item.name, None) or getattr(item, "function", None)
    given = _parameters(function)
    test = file.test(_class_names(of_class), _test_names(item, function, given))
    mode = test.mode if test else file.unlisted_test_mode
    reason = (test.reason if test else "") or ("listed" if test else "not listed")
    everywhere = config.stash[CONFIGURATION].test_suite_config.everywhere
    info = given.get("op") or given.get("module_info")
    entry = info and device_base.entry_of(info, [*everywhere.supported_ops, *everywhere.supported_modules])
    if entry and entry.force_xfail and mode == "mandatory_success":
        mode, reason = "xfail", f"force_xfail of {entry.name}"
    for name in _markers(test, given):
        config.addinivalue_line("markers", f"{name}: from the configuration")
        item.add_marker(name)
    item.user_properties.append(("mode", mode))
    if mode == "skip":
        item.add_marker(pytest.mark.skip(reason=reason))
    elif mode != "mandatory_success":
        item.add_marker(pytest.mark.xfail(reason=reason, strict=mode == "xfail_strict"))
    elif (
        test is not None
        and of_class is not None
        and isinstance(getattr(of_class, "bypass_device_restrictions", None), bool)
    ):
        item.stash[BYPASS] = True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """A test that is listed to pass runs, though its decorator names other devices (``@onlyCUDA``)."""
    instance = getattr(item, "instance", None)
    if instance is not None and item.stash.get(BYPASS, False):
        instance.bypass_device_restrictions = True


def _parameters(function: Any) -> dict[str, Any]:
    """What PyTorch's machinery made a test with: op or module, dtype; its parameters are the default of an argument."""
    defaults = getattr(function, "__defaults__", None)
    return defaults[0] if defaults and isinstance(defaults[0], dict) else {}


def _class_names(of_class: type | None) -> set[str]:
    """Of the generated class, and of the one in the source."""
    if of_class is None:
        return {""}
    generic = [base.__name__ for base in of_class.__bases__ if base.__name__.startswith("Test")]
    return {of_class.__name__, *generic}


def _test_names(item: pytest.Item, function: Any, given: dict[str, Any]) -> set[str]:
    """The name of a variant, the same without device and dtypes, and that of the template."""
    names = {item.name, getattr(item, "originalname", None) or item.name}
    if template := getattr(function, device_base.TEMPLATE, None):
        names |= {template, re.sub(r"_spyre(_\w+)?$", "", item.name)}
        names.add(item.name.replace("_spyre", "_privateuse1"))
    return names


def _markers(test: Test | None, given: dict[str, Any]) -> list[str]:
    markers = [_identifier(tag) for tag in test.tags] if test else []
    if op := given.get("op"):
        markers.append("op__" + _identifier(op.formatted_name))
    if module := given.get("module_info"):
        markers.append("module__" + _identifier(module.formatted_name))
    dtypes = given.get("dtypes", given.get("dtype"))
    for dtype in dtypes if isinstance(dtypes, (list, tuple)) else [dtypes]:
        if dtype is not None:
            markers.append("dtype__" + str(dtype).removeprefix("torch."))
    return markers


def _identifier(text: str) -> str:
    return re.sub(r"\W", "_", text)


def _crc(text: str) -> int:
    """Of a test's name behind its file: the same wherever PyTorch lies."""
    return zlib.crc32(text.rpartition("/")[2].encode())


def _begun(path: Path | None) -> set[str]:
    if path is None or not path.exists():
        return set()
    return {json.loads(line)["id"] for line in path.read_text().splitlines()}


class Results:
    """Notes what begins and what ended."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", encoding="utf-8")
        self.modes: dict[str, str] = {}  # empty where workers of pytest-xdist collect, which also survive their tests

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.modes = {item.nodeid: str(dict(item.user_properties).get("mode", "")) for item in items}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._note(id=nodeid, outcome="begun", mode=self.modes.get(nodeid, ""))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(id=report.nodeid, outcome="error", mode="", seconds=0.0, text=report.longreprtext[-4000:])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = _outcome(report)
        if outcome is not None:
            mode = dict(report.user_properties).get("mode", "")
            text = report.longreprtext[-4000:] if outcome in ("failed", "error") else str(_reason(report))
            self._note(id=report.nodeid, outcome=outcome, mode=mode, seconds=report.duration, text=text)

    def _note(self, **facts: Any) -> None:
        self.file.write(json.dumps(facts) + "\n")
        self.file.flush()


def _outcome(report: pytest.TestReport) -> str | None:
    expected = hasattr(report, "wasxfail")
    if report.when == "call" or (report.when == "setup" and not report.passed):
        if report.skipped:
            return "xfailed" if expected else "skipped"
        if report.passed:
            return "xpassed" if expected else "passed"
        return "failed" if report.when == "call" else "error"
    return "error" if report.failed else None


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail)
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
