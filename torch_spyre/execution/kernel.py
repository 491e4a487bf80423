"""Kernels as generated code calls them."""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C, logging
from .._inductor.loop_ir import Kernel, from_json
from .._inductor.loop_ir.verify import stays_inside_inputs
from ..caching import kernel_cache
from ..compile_records import timed
from ..compile_time import compiling
from ..constants import DEVICE_NAME
from ..failures import during
from ..ir.signature import signature_of
from ..kernel_types import CompiledDescription, CompiledOutput, OutputDescription
from ..signals import whole_imports
from .launches import Launch

log = logging.get_logger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A kernel that is about to run: its text, the inputs and numbers of the launch, and what came of it."""

    text: str
    inputs: Sequence[torch.Tensor]
    numbers: Sequence[float]
    plan: _C.JobPlan | None
    code: CompiledDescription
    occurrences: Sequence[Sequence[tuple[str, ...]]] = ()  # in a compiled graph: the FX nodes of each op of the text


# They hear of every kernel between its preparation and its first launch.
observers: list[Callable[[Prepared], None]] = []

_live: weakref.WeakSet[SpyreKernel] = weakref.WeakSet()  # of compiled graphs


def forget_prepared() -> None:
    """What runs next is prepared again: observers hear of it."""
    _C.forget_kernels()
    for kernel in list(_live):
        kernel.forget_variants()


def plan_for(
    kernel: Kernel, inputs: Sequence[torch.Tensor], numbers: Callable[[], Sequence[float]] = tuple
) -> tuple[_C.JobPlan | None, list[OutputDescription]]:
    """The job plan of a kernel for inputs with these layouts, None if there is nothing to run; and its outputs.

    ``numbers`` returns the runtime scalars of the first launch.
    """
    text = kernel.to_json()
    plan, code = _prepared(text, inputs)
    if observers:
        _tell(Prepared(text, inputs, numbers(), plan, code))
    return plan, [allocation(output) for output in code["outputs"]]


def _tell(prepared: Prepared) -> None:
    for observer in list(observers):
        observer(prepared)


def _prepared(text: str, inputs: Sequence[torch.Tensor]) -> tuple[_C.JobPlan | None, CompiledDescription]:
    signature = signature_of(inputs)
    how = "loaded from cache"

    def compile_here() -> CompiledDescription:
        with whole_imports():
            from .._inductor.compiler import compile_kernel

        nonlocal how
        how = "compiled"
        with timed("stage:compile"):
            return compile_kernel(from_json(text), signature)

    start = time.perf_counter()
    with during("unknown", text=text, signature=signature):
        plan, description = kernel_cache.find_or_build(text, signature, compile_here, prepare)
    log.info("kernel %s: %s in %.1f ms", _name_of(text), how, 1000 * (time.perf_counter() - start))
    return plan, description


def _name_of(text: str) -> str:
    """The name in a kernel's text, which begins with it."""
    name, _ = json.JSONDecoder().raw_decode(text, len('{"name": '))
    return str(name)


def prepare(description: CompiledDescription) -> tuple[_C.JobPlan | None, CompiledDescription]:
    """The job plan of a description. One from disk may be damaged: that must fail here, and not at a launch."""
    for size, stride in description["inputs"]:
        _check_place(size, stride)
    for output in description["outputs"]:
        _check_place(output["size"], output["stride"])
        if not isinstance(allocation(output)["dtype"], torch.dtype):
            raise TypeError(f"an output has the dtype {output['dtype']!r}")
    # A kernel whose tensors have no elements has no steps, and no memory to launch with.
    runs = any(step["type"] != "Compute" or step["program"]["steps"] for step in description["steps"])
    with during("compile_backend"), timed("stage:prepare"):
        return _C.prepare_kernel(description) if runs else None, description


class SpyreKernel(_C.CompiledKernel):
    """A kernel in loop IR. A call with its inputs returns its outputs; it compiles once per signature of its inputs.

    Without a device it runs on the card of its first input.
    """

    def __init__(self, text: str, device: int = -1) -> None:
        self.text = text
        self.device_index = device
        self.occurrences: list[list[tuple[str, ...]]] = []  # in the graph: the FX nodes of each op of the text
        self._artifacts = logging.artifact_directory()  # of the compile that loads the generated module
        self._lock = threading.Lock()
        self._may_move: bool | None = None  # not known
        _live.add(self)

    def prepare(self, inputs: tuple[torch.Tensor, ...]) -> None:
        """Adds the variant for inputs with these layouts and offsets. A call that finds none asks for it.

        A kernel that stays inside its inputs is compiled for those nearest to the start of their memory that look the
        same on the card: slices of a tensor share a variant. Inputs on the host are numbers of the launch.
        """
        given = inputs
        inputs = tuple(each for each in given if each.device.type == DEVICE_NAME)
        with self._lock:
            if self._may_move is None and any(tensor.storage_offset() for tensor in inputs):
                self._may_move = stays_inside_inputs(from_json(self.text))
                if self._may_move:
                    self.let_inputs_move()
            if self.has_variant(inputs):  # another thread was first
                return
            inputs = self.at_places(inputs)
            with compiling(), timed("pipeline:kernel"), logging.artifacts_in(self._artifacts):
                plan, code = _prepared(self.text, inputs)
            if observers:
                numbers = [float(n) for each in given if each.device.type != DEVICE_NAME for n in each.tolist()]
                _tell(Prepared(self.text, inputs, numbers, plan, code, self.occurrences))
            launch = None if plan is None else Launch(plan, code, self.text, signature_of(inputs), self.occurrences)
            self.add_variant(inputs, code["inputs"], [allocation(output) for output in code["outputs"]], plan, launch)


def occurs(kernel: SpyreKernel, nodes: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Notes that generated code calls a kernel for these nodes, one entry for each op of its text."""
    kernel.occurrences.append(nodes)
    return nodes


Handler = Callable[[SpyreKernel, tuple[torch.Tensor, ...]], list[torch.Tensor]]


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    """Inside, generated code of all threads calls ``handler`` in place of kernels; :func:`run_kernel` runs them."""

    def call(kernel: SpyreKernel, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return handler(kernel, inputs)

    SpyreKernel.__call__ = call  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del SpyreKernel.__call__


def run_kernel(kernel: SpyreKernel, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the kernel computes, whatever handles calls of kernels."""
    return _C.CompiledKernel.__call__(kernel, *inputs)


def _check_place(size: Any, stride: Any) -> None:
    if len(size) != len(stride) or not all(type(number) is int for number in (*size, *stride)):
        raise TypeError(f"a tensor has the size {size} and the strides {stride}")


def allocation(output: CompiledOutput) -> OutputDescription:
    """An output in PyTorch's terms: a compiled description is JSON, which has names of dtypes and formats."""
    given = output["layout"]
    layout = _C.SpyreTensorLayout(
        given["device_size"], given["stride_map"], _C.DataFormats.__members__[given["device_dtype"]]
    )
    dtype = getattr(torch, output["dtype"])
    return {"size": output["size"], "stride": output["stride"], "dtype": dtype, "layout": layout}
