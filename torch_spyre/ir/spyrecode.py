"""SpyreCode: a compiled kernel as a directory, a manifest in JSON and blobs with checksums.

A directory may come from anywhere: what is in it is read as data, within limits, and refused where it breaks a rule.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from .. import directories
from ..kernel_types import Description, KernelDescription

VERSION = 1
MANIFEST = "manifest.json"
MOST_BYTES = 1 << 30  # of a manifest, and of all blobs
_OWN_FILES = re.compile(r"manifest\.(json|sha256)|(buffer|program)_\d+\.bin")

Reader = Callable[[str, int], bytes]  # of a file of the directory, by its name; at most so many bytes
HostStep = Callable[..., Any]
F = TypeVar("F", bound=HostStep)

HOST_STEPS: dict[str, HostStep] = {}


class CorruptSpyreCode(RuntimeError):
    """A directory that is not what was written. The message names the file; delete the directory and compile again."""


def host_step(function: F) -> F:
    """Allow directories to name this function of torch_spyre as a step on the host, and no other."""
    name = f"{function.__module__}:{function.__qualname__}"
    if function.__module__.split(".")[0] != "torch_spyre":
        raise ValueError(f"a host step is a function of torch_spyre, not {name}")
    HOST_STEPS[name] = function
    return function


def write(path: str | os.PathLike[str], description: KernelDescription) -> None:
    """Store what ``_C.prepare_kernel`` takes. All or nothing: a reader sees the old directory or the new one.

    What is replaced is a directory that this function wrote, or an empty one; FileExistsError for everything else.
    """
    files = pack(description)
    target = Path(os.path.abspath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    parent = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _check_replaceable(parent, target)
        beside = directories.new_name(f".{target.name[:64]}.")
        os.mkdir(beside, dir_fd=parent)
        try:
            _fill(parent, beside, files)
            _replace(parent, beside, target.name)
        finally:
            _remove_own(parent, beside)
    finally:
        os.close(parent)


def pack(description: KernelDescription) -> dict[str, bytes]:
    """The files of a directory."""
    files: dict[str, bytes] = {}
    manifest = _manifest(description, files)
    verify(manifest)
    return {**files, MANIFEST: json.dumps(manifest, indent=1, allow_nan=False).encode() + b"\n"}


def read(path: str | os.PathLike[str]) -> Description:
    """The description that was written there. Raises CorruptSpyreCode where a file is missing or has changed."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise CorruptSpyreCode(f"{path}: {error}") from error
    try:
        return unpack(lambda name, most: directories.read_file(directory, name, most))
    except CorruptSpyreCode as error:
        raise CorruptSpyreCode(f"{path}: {error}") from error
    finally:
        os.close(directory)


def unpack(file: Reader) -> Description:
    """The description that a directory's files say. Raises CorruptSpyreCode."""
    try:
        manifest = json.loads(file(MANIFEST, MOST_BYTES))
        verify(manifest)
        blobs = {name: file(name, size) for name, size in _sizes(manifest).items()}
        for name, data in blobs.items():
            if hashlib.sha256(data).hexdigest() != manifest["blobs"][name]:
                raise CorruptSpyreCode(f"{name}: the checksum is not that of the manifest")
        return _description(manifest, blobs)
    except (OSError, ValueError, RecursionError) as error:  # the last of JSON that is too deep
        raise CorruptSpyreCode(str(error)) from error


def _check_replaceable(parent: int, target: Path) -> None:
    """Refuses to replace what :func:`write` has not written: somebody may need it."""
    try:
        found = os.stat(target.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    refused = f"{target} is not replaced by SpyreCode:"
    if not stat.S_ISDIR(found.st_mode):
        raise FileExistsError(f"{refused} it is no directory")
    if found.st_uid != os.geteuid():
        raise FileExistsError(f"{refused} it belongs to another user")
    directory = os.open(target.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        names = sorted(os.listdir(directory))
        foreign = [name for name in names if not _OWN_FILES.fullmatch(name)]
        if foreign:
            raise FileExistsError(f"{refused} it has {foreign[0]}, which is no part of one")
        if names and not _is_spyrecode(directory):
            raise FileExistsError(f"{refused} its {MANIFEST} is missing, damaged or something else's")
    finally:
        os.close(directory)


def _is_spyrecode(directory: int) -> bool:
    try:
        manifest = json.loads(directories.read_file(directory, MANIFEST, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == "SpyreCode"


def _fill(parent: int, name: str, files: dict[str, bytes]) -> None:
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        directories.write_files(directory, files, mode=0o666)  # the umask says who may read it
    finally:
        os.close(directory)


def _replace(parent: int, beside: str, name: str) -> None:
    """Put a directory in the place of another, which then lies beside if it was not empty."""
    try:
        os.rename(beside, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        directories.exchange(parent, beside, name)


def _remove_own(parent: int, name: str) -> None:
    """Take away the files of a directory, and with them the directory if they were all."""
    with suppress(FileNotFoundError):
        directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            for file in filter(_OWN_FILES.fullmatch, os.listdir(directory)):
                os.unlink(file, dir_fd=directory)
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=parent)


def _manifest(description: KernelDescription, blobs: dict[str, bytes]) -> Description:
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
    return {
        "format": "SpyreCode",
        "version": VERSION,
        "name": description["name"],
        "arguments": list(description["arguments"]),
        "preparation": preparation,
        "execution": execution,
        "blobs": {name: hashlib.sha256(data).hexdigest() for name, data in blobs.items()},
        "more": {key: value for key, value in description.items() if key not in _DESCRIBED},
    }


_DESCRIBED = ("name", "arguments", "allocate", "buffers", "steps")  # by other fields than "more"


def _description(manifest: Description, blobs: dict[str, bytes]) -> Description:
    pointers = list(blobs.values())
    steps: list[dict[str, Any]] = []
    for each in manifest["execution"]:
        if each["command"] == "ComputeOnDevice":
            steps.append({"type": "Compute", "program": json.loads(pointers[each["job_bin_ptr"]])})
        elif each["command"] == "ComputeOnHost":
            steps.append({"type": "HostCompute", "function": HOST_STEPS[each["function"]]})
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


def _name(function: HostStep) -> str:
    name = f"{function.__module__}:{function.__qualname__}"
    if HOST_STEPS.get(name) is not function:
        raise ValueError(f"a host step can be stored when torch_spyre declares it as one, not {name}")
    return name


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
    ("arguments", lambda m: _all(m["arguments"], _is_size), "must be sizes in bytes"),
    ("preparation", lambda m: _all(m["preparation"], lambda c: _command(c, PREPARATION)), "must allocate and transfer"),
    ("execution", lambda m: _all(m["execution"], lambda c: _command(c, EXECUTION)), "must compute and transfer"),
    ("preparation", lambda m: all(map(_OWN_FILES.fullmatch, _transferred(m))), "must transfer files of the directory"),
    ("blobs", lambda m: _transferred(m) == list(m["blobs"]), "must be the files of the InitTransfers, in order"),
    ("preparation", lambda m: sum(_sizes(m).values()) <= MOST_BYTES, f"must transfer at most {MOST_BYTES} bytes"),
    ("blobs", lambda m: all(isinstance(digest, str) for digest in m["blobs"].values()), "must have checksums"),
    (
        "execution",
        lambda m: all(c["job_bin_ptr"] in range(len(m["blobs"])) for c in m["execution"] if "job_bin_ptr" in c),
        "a job_bin_ptr points at no blob",
    ),
    (
        "execution",
        lambda m: all(c["function"] in HOST_STEPS for c in m["execution"] if "function" in c),
        "host steps are functions that torch_spyre declares as such",
    ),
    (
        "more",
        lambda m: isinstance(m["more"], dict) and not m["more"].keys() & set(_DESCRIBED),
        f"must be an object without {', '.join(_DESCRIBED)}",
    ),
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


def _all(given: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(given, list) and all(map(holds, given))


def _is_size(given: Any) -> bool:
    return type(given) is int and 0 <= given < 2**63


def _command(given: dict[str, Any], allowed: tuple[str, ...]) -> bool:
    fields = COMMANDS[given["command"]]
    return (
        given["command"] in allowed
        and given.keys() == {"command", *fields}
        and all(type(given[key]) is kind for key, kind in fields.items())
        and _is_size(given.get("size", 0))
        and given.get("direction", "H2D") in ("H2D", "D2H")
    )


def _transferred(manifest: dict[str, Any]) -> list[str]:
    return [each["file"] for each in manifest["preparation"] if each["command"] == "InitTransfer"]


def _sizes(manifest: dict[str, Any]) -> dict[str, int]:
    return {each["file"]: each["size"] for each in manifest["preparation"] if each["command"] == "InitTransfer"}
