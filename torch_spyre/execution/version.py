"""Which compiler this is: results of another one are not reused."""

import hashlib
from functools import cache
from pathlib import Path

PARTS = ("_inductor", "backend", "card", "ir", "ops")


@cache
def compiler_version() -> str:
    """Hash of the compiler's own source files."""
    package = Path(__file__).parents[1]
    content = hashlib.sha256()
    for path in sorted(path for part in PARTS for path in (package / part).rglob("*.py")):
        content.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    return content.hexdigest()
