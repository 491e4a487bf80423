"""Kernels as generated code calls them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _C
from .._inductor import logging
from .._inductor.loop_ir import Kernel, from_json
from ..constants import DEVICE_NAME
from . import kernel_cache, launches
from .launches import Launch
from .signature import signature_of

Maker = Callable[[torch.device], torch.Tensor]


def plan_for(kernel: Kernel, inputs: Sequence[torch.Tensor]) -> tuple[_C.JobPlan | None, list[dict[str, Any]]]:
    """What runs a kernel on inputs that lie like these, None if nothing has to; and descriptions of its outputs."""
    plan, code = _prepared(kernel.to_json(), inputs)
    return plan, code["outputs"]


def _prepared(text: str, inputs: Sequence[torch.Tensor]) -> tuple[_C.JobPlan | None, dict[str, Any]]:
    signature = signature_of(inputs)

    def compile_here() -> dict[str, Any]:
        from .._inductor.compiler import compile_kernel

        return compile_kernel(from_json(text), signature)

    description = kernel_cache.find_or_build(text, signature, compile_here)
    # Tensors of no elements have no memory to launch with, and nothing to do.
    runs = any(step["type"] != "Compute" or step["program"]["steps"] for step in description["steps"])
    return _C.prepare_kernel(description) if runs else None, description


class SpyreKernel:
    """A kernel in loop IR. Called with its inputs, gives its outputs; compiles once per way that the inputs may lie.

    Without a device it runs where its first input is.
    """

    def __init__(self, text: str, device: int | None = None) -> None:
        self.text = text
        self.device = None if device is None else torch.device(DEVICE_NAME, device)
        self._artifacts = logging.artifact_directory()  # of the compile that loads the generated module
        self._variants: dict[bytes, tuple[Launch | None, list[Maker]]] = {}
        self._lock = threading.Lock()

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        launch, makers = self._variants.get(_C.argument_signature(inputs)) or self._prepare(inputs)
        device = self.device or inputs[0].device
        outputs = [make(device) for make in makers]
        if launch is not None:
            _C.launch_jobplan(launch.plan, [*inputs, *outputs])
            for listener in launches.listeners:
                listener(launch)
        return outputs

    def _prepare(self, inputs: tuple[torch.Tensor, ...]) -> tuple[Launch | None, list[Maker]]:
        key = _C.argument_signature(inputs)
        with self._lock:
            if key not in self._variants:
                with logging.artifacts_in(self._artifacts):
                    plan, code = _prepared(self.text, inputs)
                launch = None if plan is None else Launch(plan, code)
                self._variants[key] = launch, [_maker(output) for output in code["outputs"]]
            return self._variants[key]


def _maker(output: dict[str, Any]) -> Maker:
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
