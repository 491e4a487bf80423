"""Kernels as generated code calls them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from .._inductor import logging
from ..constants import DEVICE_NAME
from . import kernel_cache
from .signature import Argument, key_of, signature_of

_launch = _C.launch_jobplan


@dataclass(frozen=True)
class Variant:
    """A kernel compiled for one signature of its inputs: what makes its outputs, and what runs, if anything does."""

    outputs: list[Callable[[torch.device], torch.Tensor]]
    plan: _C.JobPlan | None


class SpyreKernel:
    """A kernel in loop IR. Called with its inputs, gives its outputs; compiles once per way that the inputs may lie.

    Without a device it runs where its first input is.
    """

    def __init__(self, text: str, device: int | None = None) -> None:
        self.text = text
        self.device = None if device is None else torch.device(DEVICE_NAME, device)
        self._artifacts = logging.artifact_directory()  # of the compile that loads the generated module
        self._variants: dict[Any, Variant] = {}
        self._lock = threading.Lock()

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        variant = self._variants.get(key_of(inputs)) or self._prepare(inputs)
        device = self.device or inputs[0].device
        outputs = [make(device) for make in variant.outputs]
        if variant.plan is not None:
            _launch(variant.plan, [*inputs, *outputs])
        return outputs

    def _prepare(self, inputs: tuple[torch.Tensor, ...]) -> Variant:
        key, signature = key_of(inputs), signature_of(inputs)
        with self._lock, logging.artifacts_in(self._artifacts):
            if key not in self._variants:
                description = kernel_cache.find_or_build(self.text, signature, lambda: _compile(self.text, signature))
                plan = _C.prepare_kernel(description) if description["steps"] else None
                self._variants[key] = Variant([_maker(output) for output in description["outputs"]], plan)
            return self._variants[key]


def _compile(text: str, signature: tuple[Argument, ...]) -> dict[str, Any]:
    from .._inductor.compiler import compile_kernel
    from .._inductor.loop_ir import from_json

    return compile_kernel(from_json(text), signature)


def _maker(output: dict[str, Any]) -> Callable[[torch.device], torch.Tensor]:
    """A function that allocates this output; the default layout has a shorter way than others."""
    size, stride, dtype = output["size"], output["stride"], getattr(torch, output["dtype"])
    given = output["layout"]
    layout = _C.SpyreTensorLayout(
        given["device_size"], given["stride_map"], _C.DataFormats.__members__[given["device_dtype"]]
    )
    default = torch.empty_strided(size, stride, dtype=dtype, device=DEVICE_NAME)
    if _C.get_spyre_tensor_layout(default) == layout:
        return lambda device: torch.empty_strided(size, stride, dtype=dtype, device=device)
    return lambda device: _C.spyre_empty_with_layout(size, stride, dtype, layout, device)
