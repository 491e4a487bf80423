"""The configuration of a test run: YAML in the public form, as typed data, and which entry a test belongs to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError


class ConfigurationError(ValueError):
    """A configuration that cannot be used; the message says where in the file and why."""


def _list(value: Any) -> Any:
    """YAML's nothing is an empty list, one item a list of it."""
    return [] if value is None else value if isinstance(value, list) else [value]


def _mapping(value: Any) -> Any:
    return {} if value is None else value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Mode = Annotated[Literal["mandatory_success", "xfail", "xfail_strict", "skip"], BeforeValidator(_lower)]


class _Entry(BaseModel):
    """Fields that are not known are kept, and told (:meth:`Configuration.unknown`): forms of the format differ."""

    model_config = ConfigDict(extra="allow")


class Precision(_Entry):
    atol: float = 0.0
    rtol: float = 0.0


class Dtype(_Entry):
    name: str
    precision: Precision | None = None

    @property
    def dtype(self) -> torch.dtype:
        return dtype_of(self.name)


Dtypes = Annotated[list[Annotated[Dtype, BeforeValidator(_named)]], BeforeValidator(_list)]


class Info(_Entry):
    """An op or a module of PyTorch's databases, and for which dtypes it is tested: for all, unless some are named."""

    name: str
    force_xfail: bool = False
    dtypes: Dtypes | None = None

    def allows(self, dtype: torch.dtype) -> bool:
        return not self.dtypes or any(each.dtype == dtype for each in self.dtypes)


Infos = Annotated[list[Annotated[Info, BeforeValidator(_named)]], BeforeValidator(_list)]


class InfoEdit(_Entry):
    include: Infos = []
    exclude: Infos = []


class DtypeEdit(_Entry):
    include: Dtypes = []
    exclude: Dtypes = []


class Inputs(_Entry):
    """What an op is called with, instead of its samples (:mod:`.inputs`)."""

    args: Annotated[list[Any], BeforeValidator(_list)] = []
    kwargs: Annotated[dict[str, Any], BeforeValidator(_mapping)] = {}


class Edits(_Entry):
    ops: InfoEdit | None = None
    modules: InfoEdit | None = None
    dtypes: DtypeEdit | None = None
    inputs: Inputs | None = None


class Test(_Entry):
    """``names``: ``Class::regex``, each a full match; ``reason`` is shown with tests that are skipped or may fail."""

    names: Annotated[list[str], BeforeValidator(_list)]
    mode: Mode = "mandatory_success"
    tags: Annotated[list[str], BeforeValidator(_list)] = []
    edits: Edits | None = None
    reason: str = ""

    def covers(self, classes: set[str], tests: set[str], literally: bool) -> bool:
        for name in self.names:
            of_class, _, of_test = name.rpartition("::")
            if literally:
                found = (not of_class or of_class in classes) and of_test in tests
            else:
                found = _matches(of_class or ".*", classes) and _matches(of_test, tests)
            if found:
                return True
        return False


class File(_Entry):
    path: str
    unlisted_test_mode: Mode = "xfail"
    tests: Annotated[list[Test], BeforeValidator(_list)] = []

    def test(self, classes: set[str], tests: set[str]) -> Test | None:
        """The entry of a test that goes by these names: one that has its name, or else the first that matches."""
        for literally in (True, False):
            for each in self.tests:
                if each.covers(classes, tests, literally):
                    return each
        return None

    def place(self) -> Path:
        """The path with its variables filled in, relative ones from the device's project on. A variable that is not set
        is an error."""
        try:
            return Path(os.environ.get("TORCH_DEVICE_ROOT", ""), Template(self.path).substitute(os.environ)).resolve()
        except KeyError as error:
            hint = {"TORCH_ROOT": "; --pytorch-root sets it"}.get(error.args[0], "")
            raise ConfigurationError(f"{self.path}: the variable {error.args[0]} is not set{hint}") from None


class Global(_Entry):
    supported_dtypes: Dtypes = []
    supported_ops: Infos = []
    supported_modules: Infos = []


class Suite(_Entry):
    files: Annotated[list[File], BeforeValidator(_list)]
    everywhere: Annotated[Global, BeforeValidator(_mapping)] = Field(default_factory=Global, alias="global")


class Configuration(_Entry):
    """A configuration, by the name of its only field."""

    test_suite_config: Suite

    def file_of(self, path: Path) -> File | None:
        return next((file for file in self.test_suite_config.files if file.place() == path.resolve()), None)

    def unknown(self) -> Iterator[str]:
        """Fields that mean nothing here, with where they are."""
        yield from _unknown(self, "")


def load(path: Path) -> Configuration:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        return Configuration.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{path}: {where}: {first['msg']}") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from None


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ConfigurationError(f"{name} is no dtype of PyTorch")
    return found


def _matches(pattern: str, names: set[str]) -> bool:
    return any(re.fullmatch(pattern, name) for name in names)


def _unknown(entry: BaseModel, where: str) -> Iterator[str]:
    for name in entry.model_extra or {}:
        yield f"{where}{name}"
    for name in type(entry).model_fields:
        value = getattr(entry, name)
        for i, each in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(each, BaseModel):
                yield from _unknown(each, f"{where}{name}[{i}]." if isinstance(value, list) else f"{where}{name}.")
