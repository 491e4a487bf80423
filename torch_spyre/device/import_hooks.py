"""Changes to modules of other packages, made right after their import, whenever that is."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


def after_import(name: str, change: Any) -> None:
    """Call ``change`` with a module once it is imported; now, if it is."""
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _AfterImport(name, change))
    elif _is_incomplete(module):
        sys.meta_path.insert(0, _WhenComplete(module, change))
    else:
        change(module)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs a function on a module right after its import."""

    def __init__(self, name: str, change: Any) -> None:
        self.name, self.change = name, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self.change(module)
                _leave(self)  # not before: a caller may only look for the module, and Ctrl-C may end an import

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _WhenComplete(importlib.abc.MetaPathFinder):
    """Runs a function on a module that imports torch itself, at the first import after it is complete."""

    def __init__(self, module: ModuleType, change: Any) -> None:
        self.module, self.change = module, change

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if not _is_incomplete(self.module):
            _leave(self)
            try:
                self.change(self.module)
            except BaseException:  # Ctrl-C too: the next import tries again
                sys.meta_path.insert(0, self)
                raise


def _is_incomplete(module: ModuleType) -> bool:
    return getattr(module.__spec__, "_initializing", False)


def _leave(finder: importlib.abc.MetaPathFinder) -> None:
    """Remove a finder. Makes a new list: an iteration over the old one would miss the next finder."""
    sys.meta_path = [other for other in sys.meta_path if other is not finder]
