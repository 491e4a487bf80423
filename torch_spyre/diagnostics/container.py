"""The file of a capture: a safetensors file, whose metadata is the description and whose tensors are the values.

The format has a header in JSON and bytes behind it, and nothing else: no code, no paths, no compression. A file may
come from anywhere; what is wrong with it is a :class:`CaptureError`.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import torch

from .. import directories
from .errors import CaptureError

KEY = "spyre_capture"  # of the metadata
MOST_HEADER = 64 << 20  # bytes of the header, and of a report in JSON
MOST_VALUES = 1 << 30  # bytes of all tensors
MOST_TENSORS = 1 << 16

DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_OPEN = os.O_RDONLY | os.O_NONBLOCK  # a pipe in the place of a file does not block


def write(path: Path, description: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """A file that only the caller can read, complete or not there at all."""
    header: dict[str, Any] = {"__metadata__": {KEY: json.dumps(description, allow_nan=False)}}
    blobs, end = [], 0
    for name, tensor in tensors.items():
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        offsets = [end, end + len(data)]
        header[name] = {"dtype": _CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        blobs.append(data)
        end += len(data)
    text = json.dumps(header, allow_nan=False).encode()
    if len(text) > MOST_HEADER or end > MOST_VALUES:
        raise CaptureError(f"the capture {path} would have {len(text) + end} bytes, which is too much")
    text += b" " * (-len(text) % 8)
    replace_file(path, b"".join([len(text).to_bytes(8, "little"), text, *blobs]))


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file for the caller alone, in one step."""
    beside = path.with_name(directories.new_name(f".{path.name[:64]}."))
    opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(content)
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def read(path: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """The description, unchecked, and the tensors. A report in JSON has a description and no tensors."""
    content = _content(path)
    try:
        if content[:1] == b"{":  # never the length of a header: that is a multiple of 8
            return _from_report(content), {}
        return _from_safetensors(content)
    except CaptureError as error:
        raise CaptureError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:  # JSON that is none, or too deep
        raise CaptureError(f"{path}: the JSON in it cannot be read: {str(error)[:200]}") from None


def _content(path: Path) -> bytes:
    try:
        opened = os.open(path, _OPEN)
    except OSError as error:
        raise CaptureError(f"{path}: {error.strerror}") from None
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise CaptureError(f"{path} is no regular file")
        most = 8 + MOST_HEADER + MOST_VALUES
        if found.st_size > most:
            raise CaptureError(f"{path} has {found.st_size} bytes, a capture has {most} at most")
        with os.fdopen(opened, "rb", closefd=False) as file:
            return file.read(most)
    except OSError as error:
        raise CaptureError(f"{path}: {error.strerror}") from None
    finally:
        os.close(opened)


def _from_report(content: bytes) -> Any:
    if len(content) > MOST_HEADER:
        raise CaptureError(f"a report has {MOST_HEADER} bytes at most")
    report = json.loads(content)
    artifacts = report.get("artifacts") if isinstance(report, dict) else None
    if not isinstance(artifacts, dict) or "kernel" not in artifacts:
        raise CaptureError("this is neither a capture nor a diagnostic report")
    if artifacts["kernel"] is None:
        raise CaptureError("the report has no kernel: what failed was no kernel, or failed before there was one")
    return artifacts["kernel"]


def _from_safetensors(content: bytes) -> tuple[Any, dict[str, torch.Tensor]]:
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > min(MOST_HEADER, len(content) - 8):
        raise CaptureError("this is no capture, or it is cut off")
    header, values = json.loads(content[8 : 8 + size]), content[8 + size :]
    metadata = header.pop("__metadata__", None) if isinstance(header, dict) else None
    text = metadata.get(KEY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise CaptureError("this is a safetensors file and no capture")
    if len(header) > MOST_TENSORS:
        raise CaptureError(f"it has {len(header)} tensors")
    return json.loads(text), {str(name): _tensor(name, given, values) for name, given in header.items()}


def _tensor(name: str, given: Any, values: bytes) -> torch.Tensor:
    fields = given if isinstance(given, dict) else {}
    dtype = DTYPES.get(str(fields.get("dtype")))
    shape: Any = fields.get("shape")
    offsets: Any = fields.get("data_offsets")
    if dtype is None or not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise CaptureError(f"the tensor {name[:80]} is not described as safetensors do")
    begin, end = offsets
    if not begin <= end <= len(values) or prod(shape) * dtype.itemsize != end - begin:
        raise CaptureError(f"the tensor {name[:80]} has not the bytes that it says, or the file is cut off")
    data = torch.frombuffer(bytearray(values[begin:end]), dtype=torch.uint8) if end > begin else torch.empty(0).byte()
    return data.view(dtype).reshape(shape)


def _are_counts(given: Any) -> bool:
    return isinstance(given, list) and len(given) <= 64 and all(type(n) is int and 0 <= n <= 1 << 40 for n in given)
