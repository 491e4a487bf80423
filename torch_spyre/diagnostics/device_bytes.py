"""The bytes of device memory as they are: formats of the card have values that no dtype of the host has."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C


def put(tensor: torch.Tensor, content: bytes) -> None:
    """Writes the beginning of the tensor's memory."""
    if content:
        step = {"type": "H2D", "argument": 0, "offset": 0, "buffer": 0}
        _C.launch_jobplan(_plan([step], content), [tensor])


def get(tensor: torch.Tensor, size: int) -> bytes:
    """The first bytes of the tensor's memory, after all that is queued."""
    found: list[bytes] = []
    steps = [
        {"type": "D2H", "argument": 0, "offset": 0, "buffer": 0},
        {"type": "HostCompute", "function": lambda buffers: found.append(bytes(buffers[0]))},
    ]
    _C.launch_jobplan(_plan(steps, bytes(size)), [tensor])
    torch.accelerator.current_stream(tensor.device).synchronize()
    return found[0]


def _plan(steps: list[dict[str, Any]], buffer: bytes) -> _C.JobPlan:
    return _C.prepare_kernel({"name": "bytes", "arguments": [len(buffer)], "steps": steps, "buffers": [buffer]})
