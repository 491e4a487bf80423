"""The base of device-generic tests, which makes of each template the tests that a configuration wants.

PyTorch makes a test for each op or module and dtype that it supports. Of a template that is listed, those stay whose
dtypes are (global and op's and test's) or included, and not excluded; ops and modules likewise.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal import common_device_type
from torch.testing._internal.common_device_type import PrivateUse1TestBase, tol, toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo

from .configuration import Configuration, File, Global, Info, InfoEdit, Test
from .inputs import samples

TEMPLATE = "template_name"  # the attribute of a test that names what it was made of


def install(configuration: Configuration) -> None:
    """From here on templates are instantiated by the configuration. Also gives the device its name right away, so that
    all generated classes are named after it."""
    PrivateUse1TestBase.setUpClass()
    base = type("ConfiguredTestBase", (_ConfiguredTestBase,), {"configuration": configuration})
    bases = common_device_type.device_type_test_bases
    bases[:] = [base if each is PrivateUse1TestBase else each for each in bases]


class _ConfiguredTestBase(PrivateUse1TestBase):
    configuration: Configuration
    listed = False  # whether the file that is being collected is one of the configuration
    current: Test | None = None  # the entry of the template that is being instantiated

    @classmethod
    def instantiate_test(cls, name: str, test: Any, *, generic_cls: Any = None) -> None:
        file = cls._file(generic_cls)
        # Parameters are not known yet: an entry for one variant's full name edits nothing but that variant's mode.
        found = file.test({generic_cls.__name__, cls.__name__}, {name}) if file and generic_cls else None
        cls.listed, cls.current = file is not None, found
        before = set(vars(cls))
        everywhere = cls.configuration.test_suite_config.everywhere if file else Global()
        if file is not None:
            _extend_modules(test, found, everywhere)
            test.parametrize_fn = _chosen(getattr(test, "parametrize_fn", _unparametrized), found, everywhere)
        super().instantiate_test(name, test, generic_cls=generic_cls)
        for made in set(vars(cls)) - before:
            setattr(vars(cls)[made], TEMPLATE, name)

    @classmethod
    def _file(cls, generic_cls: Any) -> File | None:
        module = sys.modules.get(generic_cls.__module__) if generic_cls else None
        path = getattr(module, "__file__", None)
        return cls.configuration.file_of(Path(path)) if path else None

    @classmethod
    def _get_dtypes(cls, test: Any) -> Any:
        """Those of ``@dtypes`` that the configuration wants, and the included ones. None: it has no such decorator."""
        given = super()._get_dtypes(test)
        if given is None or not cls.listed:
            return given
        more = [dtype for dtype in _included(cls.current) if dtype not in given]
        wants = _wants(cls.current, cls.configuration.test_suite_config.everywhere)
        return [each for each in (*given, *more) if all(wants(dtype, None) for dtype in _each(each))]

    @classmethod
    def _apply_op_overrides(cls, ops: Any, test: Any = None) -> None:
        """PyTorch asks for this before it makes the tests of ``@ops``: other ops, dtypes, samples and tolerances."""
        super()._apply_op_overrides(ops, test)
        if not cls.listed:
            return
        edits = cls.current.edits if cls.current else None
        everywhere = cls.configuration.test_suite_config.everywhere
        wanted = _wanted(ops.op_list, everywhere.supported_ops, edits.ops if edits else None, _op_db)
        ops.op_list = [_edited(op, cls.current, everywhere) for op in wanted] or [_without_dtypes(ops.op_list[0])]
        if isinstance(ops.opinfo_dtypes, (list, tuple)):
            more = [dtype for dtype in _included(cls.current) if dtype not in ops.opinfo_dtypes]
            ops.opinfo_dtypes = [] if not wanted else [*ops.opinfo_dtypes, *more]
        if ops.allowed_dtypes is not None:
            ops.allowed_dtypes |= set(_included(cls.current))


def _op_db() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def _module_db() -> list[Any]:
    from torch.testing._internal.common_modules import module_db

    return list(module_db)


def _unparametrized(test: Any, *_: Any) -> Iterator[tuple[Any, str, dict[str, Any], Callable[..., list[Any]]]]:
    yield test, "", {}, lambda _: []


def is_named(info: Any, entry: Info) -> bool:
    """An op's entry may have its name, which is that of all variants, or the full one."""
    return entry.name in (info.name, getattr(info, "full_name", info.name), info.formatted_name)


def entry_of(info: Any, entries: list[Info]) -> Info | None:
    return next((each for each in entries if is_named(info, each)), None)


def _wanted(
    given: list[Any], supported: list[Info], edit: InfoEdit | None, database: Callable[[], list[Any]]
) -> list[Any]:
    """(Global and the template's), with what is included and without what is excluded."""
    wanted = [info for info in given if not supported or entry_of(info, supported)]
    if edit is not None and edit.include:
        more = [*given, *database()]
        names = {info.formatted_name for info in wanted}
        for info in more:
            if entry_of(info, edit.include) and info.formatted_name not in names:
                names.add(info.formatted_name)
                wanted.append(info)
    if edit is not None:
        wanted = [info for info in wanted if not entry_of(info, edit.exclude)]
    return wanted


def _included(test: Test | None) -> list[torch.dtype]:
    edit = test.edits.dtypes if test and test.edits else None
    return [each.dtype for each in edit.include] if edit else []


def _edited(op: Any, test: Test | None, everywhere: Global) -> Any:
    """A copy of an OpInfo with the configuration's dtypes, tolerances and samples; the op itself where it has none."""
    edits = test.edits if test else None
    entries = [entry_of(op, everywhere.supported_ops)]
    entries += [entry_of(op, edits.ops.include)] if edits and edits.ops else []
    precisions = list(everywhere.supported_dtypes)  # what is said of an op, or of a test, goes before it
    precisions += [each for entry in entries if entry and entry.dtypes for each in entry.dtypes]
    precisions += edits.dtypes.include if edits and edits.dtypes else []
    tolerances = {each.dtype: tol(each.precision.atol, each.precision.rtol) for each in precisions if each.precision}
    included = set(_included(test))
    inputs = edits.inputs if edits else None
    if not (tolerances or included or inputs):
        return op
    edited = copy.deepcopy(op)
    if included:
        edited.dtypes = set(edited.supported_dtypes("privateuse1")) | included
        edited.dtypesIf = {}
        edited.backward_dtypes = set(edited.backward_dtypes) | included
    if tolerances:
        edited.decorators = (*edited.decorators, DecorateInfo(toleranceOverride(tolerances)))
    if inputs:
        edited.sample_inputs_func = edited.reference_inputs_func = samples(inputs)
    return edited


def _without_dtypes(op: Any) -> Any:
    """For a template of which no op is left: PyTorch refuses an empty list."""
    emptied = copy.deepcopy(op)
    emptied.dtypes, emptied.dtypesIf, emptied.backward_dtypes = set(), {}, set()
    return emptied


def _extend_modules(test: Any, found: Test | None, everywhere: Global) -> None:
    """Of ``@modules``, for which PyTorch asks nobody: the list of its decorator, while no other stands above it."""
    decorator: Any = getattr(getattr(test, "parametrize_fn", None), "__self__", None)
    given = getattr(decorator, "module_info_list", None)
    if given is None:
        return
    edits = found.edits if found else None
    wanted = _wanted(given, everywhere.supported_modules, edits.modules if edits else None, _module_db)
    if included := set(_included(found)):
        wanted = [copy.copy(info) for info in wanted]
        for info in wanted:
            info.dtypes = set(info.dtypes) | included
        if decorator.allowed_dtypes is not None:
            decorator.allowed_dtypes |= included
    decorator.module_info_list = wanted


def _wants(test: Test | None, everywhere: Global) -> Callable[[torch.dtype, Any], bool]:
    """Whether a dtype is tested, of an op or module if there is one."""
    edit = test.edits.dtypes if test and test.edits else None
    included = set(_included(test))
    excluded = {each.dtype for each in edit.exclude} if edit else set()
    allowed = {each.dtype for each in everywhere.supported_dtypes}

    def wants(dtype: torch.dtype, info: Any) -> bool:
        if dtype in excluded:
            return False
        entry = entry_of(info, [*everywhere.supported_ops, *everywhere.supported_modules]) if info else None
        return dtype in included or ((not allowed or dtype in allowed) and (entry is None or entry.allows(dtype)))

    return wants


def _each(dtypes: Any) -> list[torch.dtype]:
    """A test may have several dtypes, one, or none."""
    given = dtypes if isinstance(dtypes, (list, tuple)) else [dtypes]
    return [dtype for dtype in given if dtype is not None]


def _chosen(parametrize: Callable[..., Any], test: Test | None, everywhere: Global) -> Callable[..., Any]:
    """The variants that a template makes, without those of other dtypes than the configuration wants."""
    wants = _wants(test, everywhere)

    def variants(*arguments: Any) -> Iterator[Any]:
        for made in parametrize(*arguments):
            given = made[2]
            info = given.get("op") or given.get("module_info")
            if all(wants(dtype, info) for dtype in _each(given.get("dtypes", given.get("dtype")))):
                yield made

    return variants
