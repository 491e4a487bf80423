"""Directories as data: a file is bytes, {"json": ...}, {"header": ..., "data": bytes} (safetensors), {"link": path}, or
{"fifo": ...}. With ``rehash`` the checksums are made to fit, so that damage is met by what comes behind them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from tests.mutation.cases import deep_stack

MANIFEST, CHECKSUM = "manifest.json", "manifest.sha256"


def write(root: Path, files: Any) -> None:
    """Names lead nowhere else: that is not what is tested."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items() if isinstance(files, dict) else ():
        path = root / (str(name).replace("/", "_").replace("\0", "_")[:100] or "_")
        if path.name in (".", "..") or path.exists() or path.is_symlink():
            continue
        if isinstance(content, dict) and isinstance(content.get("link"), str):
            path.symlink_to(content["link"].replace("\0", "_") or "_")
        elif isinstance(content, dict) and "fifo" in content:
            os.mkfifo(path)
        else:
            path.write_bytes(_bytes(content))


def _bytes(content: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    if isinstance(content, dict) and "header" in content:
        header, data = _json(content["header"]), content.get("data")
        return len(header).to_bytes(8, "little") + header + (data if isinstance(data, bytes) else b"")
    return _json(content["json"] if isinstance(content, dict) and "json" in content else content)


def _json(value: Any) -> bytes:
    with deep_stack():
        return json.dumps(value, default=repr).encode()


def read(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(root.iterdir())}


def taken_apart(files: dict[str, bytes]) -> dict[str, Any]:
    """JSON, safetensors and the programs of SpyreCode as what they hold."""
    found: dict[str, Any] = dict(files)
    for name, content in files.items():
        if name.endswith(".json") or name.startswith("program_"):
            found[name] = {"json": json.loads(content)}
        elif name.endswith(".safetensors"):
            end = 8 + int.from_bytes(content[:8], "little")
            found[name] = {"header": json.loads(content[8:end]), "data": content[end:]}
    return found


def rehash(root: Path) -> None:
    """The sums that a manifest has of other files, and that of the manifest."""
    manifest = root / MANIFEST
    if not manifest.is_file() or manifest.is_symlink():
        return
    try:
        facts = json.loads(manifest.read_bytes())
        for name in facts["blobs"]:
            if (root / name).is_file() and not (root / name).is_symlink():
                facts["blobs"][name] = hashlib.sha256((root / name).read_bytes()).hexdigest()
        manifest.write_text(json.dumps(facts))
    except (ValueError, KeyError, TypeError, RecursionError, OSError):
        pass
    if (root / CHECKSUM).is_file():
        (root / CHECKSUM).write_bytes(hashlib.sha256(manifest.read_bytes()).digest())
