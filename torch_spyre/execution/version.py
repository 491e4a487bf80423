"""Which compiler this is: results of another one are not reused."""

import hashlib
from functools import cache
from pathlib import Path

from .. import _C

PARTS = ("_inductor", "backend", "card", "execution", "ir", "ops")


@cache
def compiler_version() -> str:
    """Hash of the compiler's own source files, and of the extension that says what layouts and tile operations are."""
    package = Path(__file__).parents[1]
    content = hashlib.sha256()
    for path in sorted(path for part in PARTS for path in (package / part).rglob("*.py")):
        content.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    content.update(Path(_C.__file__).read_bytes())
    return content.hexdigest()
