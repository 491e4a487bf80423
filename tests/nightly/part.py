"""A pytest plugin: ``--part i/n`` runs every n-th test, so that a long suite can be done in parts."""

from __future__ import annotations

import pytest

from tests.shards import parse_shard


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", help="i/n: the i-th of n parts of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = parse_shard(config.getoption("--part"))
    left_out = [item for i, item in enumerate(items) if i % parts != part - 1]
    config.hook.pytest_deselected(items=left_out)
    items[:] = items[part - 1 :: parts]
