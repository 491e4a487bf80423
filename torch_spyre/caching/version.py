"""Which compiler this is: results of another one are not reused."""

import hashlib
import inspect
import marshal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from .. import _C

PACKAGE = Path(__file__).parents[1]

# Every room whose code shapes a kernel, or what is kept of one.
ROOMS = ("_inductor", "backend", "caching", "card", "eager", "execution", "ir", "ops")

_extensions: dict[Callable[..., Any], str] = {}  # functions that others have registered


def compiler_version(package: Path = PACKAGE) -> str:
    """Hash of the compiler's own source files, of the extension that says what layouts and tile operations are, and of
    what others have added to the compiler."""
    own = _own_version(package)
    return hashlib.sha256("\0".join([own, *sorted(_extensions.values())]).encode()).hexdigest() if _extensions else own


@cache
def _own_version(package: Path) -> str:
    content = hashlib.sha256()
    for path in sorted(path for room in ROOMS for path in (package / room).rglob("*.py")):
        content.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    content.update(Path(_C.__file__).read_bytes())
    return content.hexdigest()


def extend(function: Callable[..., Any]) -> None:
    """Kernels depend on this function too. Its source file stands for it and what it calls there."""
    try:
        content = Path(inspect.getsourcefile(function) or "").read_bytes()
    except (OSError, TypeError):  # typed in
        content = marshal.dumps(function.__code__) if hasattr(function, "__code__") else repr(function).encode()
    _extensions[function] = f"{function.__module__}.{function.__qualname__} {hashlib.sha256(content).hexdigest()}"


def restrict(function: Callable[..., Any]) -> None:
    """Kernels no longer depend on this function."""
    _extensions.pop(function, None)
