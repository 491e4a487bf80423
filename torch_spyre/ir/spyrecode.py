"""SpyreCode: a compiled kernel as a directory, a manifest in JSON and blobs with checksums."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

VERSION = 1
MANIFEST = "manifest.json"


class CorruptSpyreCode(RuntimeError):
    """A directory that is not what was written. The message names the file; delete the directory and compile again."""


def write(path: str | os.PathLike[str], description: dict[str, Any]) -> None:
    """Store what ``_C.prepare_kernel`` takes. All or nothing: who reads meanwhile sees the old directory or the new."""
    blobs: dict[str, bytes] = {}
    manifest = _manifest(description, blobs)
    verify(manifest)
    target = Path(path)
    beside = target.with_name(f"{target.name}.{os.getpid()}.new")
    beside.mkdir(parents=True)
    try:
        for name, data in blobs.items():
            (beside / name).write_bytes(data)
        (beside / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The description that was written there. Raises CorruptSpyreCode where a file is missing or has changed."""
    root = Path(path)
    try:
        manifest = json.loads((root / MANIFEST).read_text())
        verify(manifest)
        blobs = {name: (root / name).read_bytes() for name in manifest["blobs"]}
    except (OSError, ValueError) as error:
        raise CorruptSpyreCode(f"{root}: {error}") from error
    for name, data in blobs.items():
        if hashlib.sha256(data).hexdigest() != manifest["blobs"][name]:
            raise CorruptSpyreCode(f"{root / name}: the checksum is not that of the manifest")
    return _description(manifest, blobs)


def _manifest(description: dict[str, Any], blobs: dict[str, bytes]) -> dict[str, Any]:
    """Programs and host buffers become blobs, loaded once; steps refer to them by position in the preparation."""
    preparation = [{"command": "Allocate", "size": size} for size in description.get("allocate", ())]

    def load(name: str, data: bytes) -> int:
        blobs[name] = data
        preparation.append({"command": "InitTransfer", "file": name, "size": len(data), "dev_ptr": len(blobs) - 1})
        return len(blobs) - 1

    for i, buffer in enumerate(description.get("buffers", ())):
        load(f"buffer_{i}.bin", bytes(buffer))
    execution: list[dict[str, Any]] = []
    for step in description["steps"]:
        if step["type"] == "Compute":
            text = json.dumps(step["program"], separators=(",", ":"), allow_nan=False)
            pointer = load(f"program_{len(execution)}.bin", text.encode())
            execution.append({"command": "ComputeOnDevice", "job_bin_ptr": pointer})
        elif step["type"] == "HostCompute":
            execution.append({"command": "ComputeOnHost", "function": _name(step["function"])})
        else:
            place = {key: step.get(key, 0) for key in ("argument", "offset", "buffer")}
            execution.append({"command": "DataTransfer", "direction": step["type"], **place})
    known = ("name", "arguments", "allocate", "buffers", "steps")
    return {
        "format": "SpyreCode",
        "version": VERSION,
        "name": description["name"],
        "arguments": list(description["arguments"]),
        "preparation": preparation,
        "execution": execution,
        "blobs": {name: hashlib.sha256(data).hexdigest() for name, data in blobs.items()},
        "more": {key: value for key, value in description.items() if key not in known},
    }


def _description(manifest: dict[str, Any], blobs: dict[str, bytes]) -> dict[str, Any]:
    pointers = list(blobs.values())
    steps: list[dict[str, Any]] = []
    for each in manifest["execution"]:
        if each["command"] == "ComputeOnDevice":
            steps.append({"type": "Compute", "program": json.loads(pointers[each["job_bin_ptr"]])})
        elif each["command"] == "ComputeOnHost":
            steps.append({"type": "HostCompute", "function": _function(each["function"])})
        else:
            steps.append({"type": each["direction"]} | {key: each[key] for key in ("argument", "offset", "buffer")})
    description = {
        "name": manifest["name"],
        "arguments": manifest["arguments"],
        "allocate": [each["size"] for each in manifest["preparation"] if each["command"] == "Allocate"],
        "steps": steps,
        **manifest["more"],
    }
    buffers = [data for name, data in blobs.items() if name.startswith("buffer_")]
    return description | {"buffers": buffers} if buffers else description


# Host steps are functions of this package: a directory must not make a process call anything else.
def _name(function: Callable[..., Any]) -> str:
    name = f"{function.__module__}:{function.__qualname__}"
    if not _ours(name):
        raise ValueError(f"a host step can be stored when it is a function of torch_spyre, not {name}")
    return name


def _ours(name: str) -> bool:
    module, _, function = name.partition(":")
    return module.split(".")[0] == "torch_spyre" and function.isidentifier()


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


COMMANDS: dict[str, dict[str, type]] = {
    "Allocate": {"size": int},
    "InitTransfer": {"file": str, "size": int, "dev_ptr": int},
    "ComputeOnHost": {"function": str},
    "ComputeOnDevice": {"job_bin_ptr": int},
    "DataTransfer": {"direction": str, "argument": int, "offset": int, "buffer": int},
}
PREPARATION, EXECUTION = ("Allocate", "InitTransfer"), ("ComputeOnHost", "DataTransfer", "ComputeOnDevice")
RULES: list[tuple[str, Callable[[dict[str, Any]], bool], str]] = [
    ("format", lambda m: m["format"] == "SpyreCode", "must be SpyreCode"),
    ("version", lambda m: m["version"] == VERSION, f"must be {VERSION}: compile again"),
    ("name", lambda m: isinstance(m["name"], str), "must be a text"),
    ("arguments", lambda m: all(type(size) is int and size >= 0 for size in m["arguments"]), "must be sizes in bytes"),
    ("preparation", lambda m: all(_command(c, PREPARATION) for c in m["preparation"]), "must allocate and transfer"),
    ("execution", lambda m: all(_command(c, EXECUTION) for c in m["execution"]), "must compute and transfer"),
    ("blobs", lambda m: _transferred(m) == list(m["blobs"]), "must be the files of the InitTransfers, in order"),
    (
        "execution",
        lambda m: all(c.get("job_bin_ptr", 0) in range(max(len(m["blobs"]), 1)) for c in m["execution"]),
        "a job_bin_ptr points at no blob",
    ),
    (
        "execution",
        lambda m: all(_ours(c["function"]) for c in m["execution"] if "function" in c),
        "host steps are functions of torch_spyre",
    ),
    ("more", lambda m: isinstance(m["more"], dict), "must be an object"),
]


def verify(manifest: dict[str, Any]) -> None:
    """Raises ValueError naming the field that breaks a rule."""
    for field, holds, message in RULES:
        try:
            fine = holds(manifest)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"manifest: {field}: {message} ({type(error).__name__} {error})") from error
        if not fine:
            raise ValueError(f"manifest: {field}: {message}")


def _command(given: dict[str, Any], allowed: tuple[str, ...]) -> bool:
    fields = COMMANDS[given["command"]]
    return (
        given["command"] in allowed
        and given.keys() == {"command", *fields}
        and all(type(given[key]) is kind for key, kind in fields.items())
        and given.get("direction", "H2D") in ("H2D", "D2H")
    )


def _transferred(manifest: dict[str, Any]) -> list[str]:
    names = [each["file"] for each in manifest["preparation"] if each["command"] == "InitTransfer"]
    return [name for name in names if Path(name).name == name]  # nothing outside the directory
