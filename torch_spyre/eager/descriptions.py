"""From the graph of a call to the description of its kernel, in the terms that ``_C`` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from .. import _C
from .._inductor.errors import Unsupported
from ..compile_records import timed
from ..kernel_types import EagerKernelDescription, OutputDescription


def compile_graph(
    op: OpOverload, graph: fx.Graph, inputs: Sequence[torch.Tensor], numbers: Callable[[], Sequence[float]] = tuple
) -> tuple[_C.JobPlan | None, list[OutputDescription]]:
    """The job plan of a graph for these inputs, None if there is nothing to compute; and its outputs.

    ``numbers`` returns the runtime scalars of the first launch.
    """
    from .._inductor.fx.lower import lower_graph
    from ..execution.kernel import plan_for

    with timed("stage:lower"):
        kernel = lower_graph(graph, op._schema.name.split("::")[1])
    for each in kernel.ops:
        each.aten = str(op)  # the op of the program, also if decompositions replaced it
    # Tensors without elements have no memory to launch with; lowerings may have used their shape.
    empty = {buffer.name for buffer in kernel.inputs() if 0 in buffer.size}
    if any(name in empty for each in kernel.ops for name in each.reads()):
        raise Unsupported("An input has no elements.")
    kernel.buffers = {name: buffer for name, buffer in kernel.buffers.items() if name not in empty}
    return plan_for(kernel, [tensor for tensor in inputs if tensor.numel()], numbers)


def description(**fields: Any) -> EagerKernelDescription:
    """A description with these fields; the others are empty."""
    found: EagerKernelDescription = {
        "plan": None,
        "arguments": [],
        "outputs": [],
        "copies": [],
        "returns": [],
        "resize": [],
        "runtime_scalars": None,
    }
    found.update(fields)  # type: ignore[typeddict-item]
    return found


def new_output(tensor: torch.Tensor) -> OutputDescription:
    """An output like a meta tensor, in the default layout."""
    return {"size": list(tensor.size()), "stride": list(tensor.stride()), "dtype": tensor.dtype, "layout": None}
