"""Captures taken apart, so that every part can be damaged, and put together again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.mutation.cases import deep_stack


def read(path: Path) -> dict[str, Any]:
    """Header, description and values of a file."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    description = json.loads(header.pop("__metadata__")["spyre_capture"])
    return {"description": description, "header": header, "values": content[8 + size :]}


def write(path: Path, given: dict[str, Any]) -> None:
    """The file that the parts make, or the one that is given as a whole."""
    if isinstance(given.get("bytes"), bytes):
        path.write_bytes(given["bytes"])
        return
    values, header = given.get("values"), given.get("header")
    with deep_stack():
        description = json.dumps(given.get("description"), default=repr)
        text = json.dumps({"__metadata__": {"spyre_capture": description}} | _object(header), default=repr)
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + (values if isinstance(values, bytes) else b""))


def _object(given: Any) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}
