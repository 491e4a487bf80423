"""Which compiler this is: results of another one are not reused."""

import hashlib
from functools import cache
from pathlib import Path

from .. import _C

PACKAGE = Path(__file__).parents[1]

# Every room whose code shapes a kernel, or what is kept of one.
ROOMS = ("_inductor", "backend", "caching", "card", "eager", "execution", "ir", "ops")


@cache
def compiler_version(package: Path = PACKAGE) -> str:
    """Hash of the compiler's own source files, and of the extension that says what layouts and tile operations are."""
    content = hashlib.sha256()
    for path in sorted(path for room in ROOMS for path in (package / room).rglob("*.py")):
        content.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    content.update(Path(_C.__file__).read_bytes())
    return content.hexdigest()
