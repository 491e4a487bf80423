"""The configuration of the device-generic suites, ``suites.toml``, as the tests and pytest's hooks read it."""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """One generated test: a template, the op or module it is for, a dtype where it has one."""

    template: str
    name: str
    dtype: str | None

    def __str__(self) -> str:
        return " ".join(part for part in (self.template, self.name, self.dtype) if part)


@dataclass(frozen=True)
class Rule:
    """Tests that are skipped or expected to fail. Names, templates and dtypes may have wildcards."""

    reason: str
    names: tuple[str, ...]
    tests: tuple[str, ...] = ("*",)
    dtypes: tuple[str, ...] = ("*",)

    def covers(self, case: Case) -> bool:
        return (
            any(fnmatchcase(case.name, name) for name in self.names)
            and any(fnmatchcase(case.template, name) for name in self.tests)
            and any(fnmatchcase(case.dtype or "", name) for name in self.dtypes)
        )


@dataclass(frozen=True)
class Template:
    """What a template runs over: dtypes, samples of each op, and which ops, all of them unless they are named.

    ``roundings``: how many roundings there are on the way to a result that takes an op one.
    """

    dtypes: tuple[str, ...] = ("float32",)
    samples: int = 2
    roundings: int = 1
    names: tuple[str, ...] = ("*",)

    def takes(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.names)

    def torch_dtypes(self) -> list[torch.dtype]:
        return [getattr(torch, name) for name in self.dtypes]


@dataclass(frozen=True)
class Suites:
    least_pass_rate: float
    quick_one_of: int
    templates: dict[str, Template]
    skip: tuple[Rule, ...]
    xfail: tuple[Rule, ...]
    roundings: dict[str, int]
    narrow: tuple[Rule, ...]
    on_host: tuple[Rule, ...]

    def select(self, template: str, infos: Iterable[Any]) -> list[Any]:
        """The infos that a template runs over."""
        return [info for info in infos if self.templates[template].takes(name_of(info))]

    def dtypes(self, template: str) -> list[torch.dtype]:
        return self.templates[template].torch_dtypes()

    def some(self, template: str, samples: Iterable[Any]) -> list[Any]:
        """As many samples as the template takes, evenly from all there are."""
        given, count = list(samples), self.templates[template].samples
        return given if len(given) <= count else [given[i * len(given) // count] for i in range(count)]

    def roundings_of(self, case: Case) -> int:
        return self.templates[case.template].roundings * self.roundings.get(case.name, 1)

    def is_narrow(self, case: Case) -> bool:
        return any(rule.covers(case) for rule in self.narrow)

    def stays_on_host(self, case: Case) -> bool:
        """Whether tensors other than the op's first argument are not moved to the card."""
        return any(rule.covers(case) for rule in self.on_host)

    def is_quick(self, case: Case) -> bool:
        """Whether `make test` runs it: one of so many, always the same ones."""
        return zlib.crc32(str(case).encode()) % self.quick_one_of == 0


def name_of(info: Any) -> str:
    """The name of an OpInfo, with its variant, or of a ModuleInfo."""
    return getattr(info, "full_name", info.name)


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _rules(entries: Iterable[dict[str, Any]]) -> tuple[Rule, ...]:
    found = []
    for entry in entries:
        rule = Rule(entry["reason"], **{key: _names(entry[key]) for key in entry if key != "reason"})
        assert rule.reason and rule.names, f"an entry without a reason or names: {entry}"
        found.append(rule)
    return tuple(found)


@cache
def suites() -> Suites:
    data = tomllib.loads((Path(__file__).parent / "suites.toml").read_text())
    templates = {
        name: Template(**{key: value if isinstance(value, int) else _names(value) for key, value in entry.items()})
        for name, entry in data["templates"].items()
    }
    return Suites(
        least_pass_rate=data["least_pass_rate"],
        quick_one_of=data["quick_one_of"],
        templates=templates,
        skip=_rules(data.get("skip", [])),
        xfail=_rules(data.get("xfail", [])),
        roundings=data.get("roundings", {}),
        narrow=_rules(data.get("narrow", [])),
        on_host=_rules(data.get("on_host", [])),
    )
