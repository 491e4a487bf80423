"""The configuration says nothing about tests that are not there."""

from dataclasses import replace

import pytest

from tests.generic.suites import suites


def test_every_rule_covers_tests(cases):
    if {case.template for case in cases} != set(suites().templates):
        pytest.skip("some of the suites were not collected")
    rules = (*suites().skip, *suites().xfail, *suites().narrow, *suites().on_host)
    for rule in rules:
        for field in ("names", "tests", "dtypes"):
            for pattern in getattr(rule, field):
                only = replace(rule, **{field: (pattern,)})
                assert any(only.covers(case) for case in cases), f"{pattern} of the rule for {rule.reason!r}"
    known = {case.name for case in cases}
    assert not set(suites().roundings) - known
    for template in suites().templates.values():
        for pattern in template.names:
            assert any(replace(template, names=(pattern,)).takes(name) for name in known), pattern
