"""Raw bytes on the card, and launches that leave their result as bits to compare."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_spyre import _C

MOST = 1 << 24  # bytes of an argument: no case needs more


class Differs(Exception):
    """The same program on the same bytes gave other bits the second time."""


def launched(plan: _C.JobPlan, contents: Sequence[bytes], order: Sequence[int], numbers: Sequence[float]) -> str:
    """Hash of all bytes behind a launch, which must be the same whatever ran before.

    ``order``: which of the tensors with these contents each argument is; the same one may be several.
    """

    def once() -> str:
        tensors = [put(content) for content in contents]
        _C.launch_jobplan(plan, [tensors[i] for i in order], numbers)
        torch.spyre.synchronize()
        return hashlib.sha256(b"".join(map(get, tensors))).hexdigest()

    return twice(once)


def twice(once: Callable[[], str]) -> str:
    """What it gives, which may not depend on what memory and scratchpads held before."""
    first = once()
    leave_traces()
    if once() != first:
        raise Differs("the second run gave other bits")
    return first


def put(content: bytes) -> torch.Tensor:
    """A tensor on the card with these very bytes, filled up to whole sticks."""
    content = content[:MOST]
    content += bytes(-len(content) % 128)
    tensor = torch.empty(len(content) // 2, dtype=torch.float16, device="spyre")
    if content:
        step = {"type": "H2D", "argument": 0, "offset": 0, "buffer": 0}
        _C.launch_jobplan(_plan([len(content)], [step], [content]), [tensor])
    return tensor


def get(tensor: torch.Tensor) -> bytes:
    size = _C.get_spyre_tensor_layout(tensor).device_bytes() if tensor.numel() else 0
    if not size:
        return b""
    found: list[bytes] = []
    steps = [
        {"type": "D2H", "argument": 0, "offset": 0, "buffer": 0},
        {"type": "HostCompute", "function": lambda buffers: found.append(bytes(buffers[0]))},
    ]
    _C.launch_jobplan(_plan([size], steps, [bytes(size)]), [tensor])
    torch.spyre.synchronize()
    return found[0]


def _plan(sizes: list[int], steps: list[dict[str, Any]], buffers: list[bytes]) -> _C.JobPlan:
    return _C.prepare_kernel({"name": "bytes", "arguments": sizes, "steps": steps, "buffers": buffers})


_TRACE = 32 * 64 * 128  # bytes: 64 sticks in the scratchpad of each core


def leave_traces() -> None:
    """Fills the scratchpads' beginnings and memory that was freed with something that no case puts there."""
    there = put(b"\x5a" * _TRACE)
    strides = [64 * 128, 128]
    in_lx = {"lx": 0, "strides": [0, 128], "stick": 1}
    outside = {"argument": 0, "strides": strides, "stick": 1}
    space = {"op": "copy", "extents": [32, 64 * 64], "slices": [32, 1]}
    steps = [space | {"operands": [in_lx, outside]}, space | {"operands": [outside | {"argument": 1}, in_lx]}]
    out = torch.empty_like(there)
    description = {"name": "traces", "arguments": [_TRACE, _TRACE]}
    compute = {"type": "Compute", "program": {"steps": steps}}
    _C.launch_jobplan(_C.prepare_kernel(description | {"steps": [compute]}), [there, out])
    torch.spyre.synchronize()
