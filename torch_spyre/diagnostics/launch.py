"""A captured kernel on the card: memory as its arguments had it, a launch, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .. import _C
from .._inductor.loop_ir import Kernel
from ..card.description import STICK_BYTES
from ..device.streams import current_stream
from ..execution.kernel import allocation
from ..ir.signature import Argument, signature_of
from ..kernel_types import CompiledDescription, OutputDescription
from . import device_bytes
from .errors import CaptureError

if TYPE_CHECKING:
    from .captures import Capture


@dataclass(frozen=True)
class Results:
    """What a kernel gave, as the host reads it: its outputs, and the inputs that it has written."""

    outputs: list[torch.Tensor]
    written: dict[int, torch.Tensor]

    def all(self) -> list[torch.Tensor]:
        return [*self.outputs, *self.written.values()]


@dataclass(frozen=True)
class Run:
    results: Results
    microseconds: float  # modelled


def _allocate(output: OutputDescription) -> torch.Tensor:
    assert output["layout"] is not None, "compiled kernels name the layout of every output"
    return _C.spyre_empty_with_layout(output["size"], output["stride"], output["dtype"], output["layout"])


def run(capture: Capture, plan: _C.JobPlan | None, code: CompiledDescription, seed: int = 0) -> Run:
    """One launch, on the captured contents, or on random ones where none were captured."""
    inputs = place(capture.kernel, capture.signature)
    if _C.card_mode() != "timing":
        if capture.contents:
            for i, content in capture.contents.items():
                device_bytes.put(inputs[i], content)
        else:
            _fill(capture.kernel, inputs, seed)
    outputs = [_allocate(allocation(output)) for output in code["outputs"]]
    if _C.card_mode() == "run":  # strict mode tells of what the kernel should have written
        for out in outputs:
            out.zero_()
    stream = current_stream()
    before = stream.modelled_time()
    if plan is not None:
        _C.launch_jobplan(plan, [*inputs, *outputs], capture.numbers)
    microseconds = round((stream.modelled_time() - before) * 1000, 6)  # picoseconds are whole
    torch.spyre.synchronize()  # type: ignore[attr-defined]
    written = {buffer.name for buffer in capture.kernel.written_inputs()}
    positions = [i for i, buffer in enumerate(capture.kernel.inputs()) if buffer.name in written]
    if _C.card_mode() == "timing":
        return Run(Results([], {}), microseconds)
    return Run(Results([out.cpu() for out in outputs], {i: inputs[i].cpu() for i in positions}), microseconds)


def place(kernel: Kernel, signature: Sequence[Argument]) -> list[torch.Tensor]:
    """Tensors without values that lie as the captured arguments did."""
    buffers = kernel.inputs()
    memory: dict[int, torch.Tensor] = {}
    for i in dict.fromkeys(argument.storage for argument in signature):
        sharers = [j for j, argument in enumerate(signature) if argument.storage == i]
        if len({buffers[j].dtype for j in sharers}) > 1:
            raise CaptureError("arguments of several dtypes share memory, which cannot be laid out again")
        layout = max((signature[j].layout for j in sharers), key=lambda layout: layout.device_bytes())
        elements = layout.device_bytes() // STICK_BYTES * layout.elems_per_stick()
        memory[i] = torch.zeros(elements, dtype=buffers[i].dtype, device="spyre")
    try:
        placed = [
            _view(memory[argument.storage], buffer.size, buffer.stride, argument)
            for buffer, argument in zip(buffers, signature, strict=True)
        ]
    except (RuntimeError, ValueError) as error:
        raise CaptureError(f"its arguments cannot be laid out as they were: {error}") from None
    if signature_of(placed) != tuple(signature):
        raise CaptureError("its arguments cannot be laid out as they were")
    return placed


def _view(memory: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], argument: Argument) -> torch.Tensor:
    if not argument.offset:
        return _C.as_strided_with_layout(memory, size, stride, 0, argument.layout)
    reach = argument.offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    whole = _C.as_strided_with_layout(memory, [reach], [1], 0, argument.layout)
    return whole.as_strided(size, stride, argument.offset)


def _fill(kernel: Kernel, tensors: Sequence[torch.Tensor], seed: int) -> None:
    """Normal numbers, and integers that are indices of everything that the kernel has indices into."""
    below = min([100, *(each.extent for op in kernel.ops for each in op.indirect)])
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors:
        size = [1 if step == 0 else n for n, step in zip(tensor.shape, tensor.stride(), strict=True)]
        own = tensor.as_strided(size, tensor.stride(), tensor.storage_offset())  # what is repeated is written once
        if tensor.is_floating_point():
            values = torch.randn(size, generator=generator)
        else:
            values = torch.randint(max(below, 1), size, generator=generator)
        own.copy_(values.to(tensor.dtype))
