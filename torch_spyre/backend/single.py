"""One SuperDSC alone on the card: its tensors put in place, run, and its result fetched."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .. import _C
from ..card.description import STICK_BYTES
from ..device.streams import current_stream
from ..ir import superdsc
from ..ir.step import compute_step
from ..kernel_types import KernelDescription, Operand
from ..ops.table import OPS
from .compile import compile_bundle

Array = npt.NDArray[Any]

# A file alone gets memory for all its tensors, and arrays of their elements on the host: the largest weights fit.
MOST_BYTES = 1 << 30
MOST_ELEMENTS = 1 << 28
MOST_ARGUMENTS = 64

TORCH_TYPES = {
    "SEN169_FP16": torch.float16,
    "IEEE_FP32": torch.float32,
    "SEN143_FP8": torch.float8_e4m3fn,
    "SEN152_FP8": torch.float8_e5m2,
    "SENINT8": torch.int8,
    "SENINT16": torch.int16,
    "IEEE_INT32": torch.int32,
    "SENUINT32": torch.uint8,
}


@dataclass
class Tensor:
    """A tensor of the op as an array: what indices count comes first, then the op's dimensions that it has."""

    shape: list[int]
    operand: Operand  # the tensor over `shape`, as a step has it
    format: str
    index_below: int  # 0: no index


@dataclass
class Single:
    """A verified file, and how to launch it."""

    name: str
    text: str
    dsc: dict[str, Any]
    tensors: list[Tensor]  # inputs, then the output
    memory: list[int]  # bytes of each argument, and of the pool behind them where the op uses it
    arguments: int
    updates: bool  # the output's contents are an input too

    def __str__(self) -> str:
        return superdsc.show(self.dsc)


@dataclass
class Result:
    output: Array
    microseconds: float  # modelled


def load(text: str) -> Single:
    """Raises InvalidSuperDSC."""
    dsc = superdsc.loads(text)
    superdsc.verify(dsc)
    name, _, op = superdsc.body(dsc)
    memory: dict[int, int] = {}
    pool = 1 + max((label["argument_"] for label in op["labeledDs_"]), default=-1)
    if pool > MOST_ARGUMENTS:
        raise superdsc.InvalidSuperDSC(f"{name}: argument_: a file alone has {MOST_ARGUMENTS} arguments at most")
    for label in op["labeledDs_"]:
        where = label["argument_"] if label["argument_"] >= 0 else pool
        end = max(label["poolOffset_"], 0) + label["sizeBytes_"]
        memory[where] = max(memory.get(where, STICK_BYTES), end)
    below = {at["ldsIdx_"]: at["extent_"] for node in op["scheduleTree_"] for at in node["indirect_"]}
    tensors = [
        _tensor(op, label, node, pool, below.get(label["ldsIdx_"], 0))
        for label, node in zip(op["labeledDs_"], op["scheduleTree_"], strict=True)
    ]
    updates = bool(op["scheduleTree_"][-1]["indirect_"])
    sizes = [memory.get(i, STICK_BYTES) for i in range(max(memory) + 1)]
    if sum(sizes) > MOST_BYTES:
        raise superdsc.InvalidSuperDSC(
            f"{name}: sizeBytes_: the tensors take {sum(sizes)} bytes, a file alone gets {MOST_BYTES}"
        )
    if (elements := sum(prod(tensor.shape) for tensor in tensors)) > MOST_ELEMENTS:
        raise superdsc.InvalidSuperDSC(
            f"{name}: N_: the tensors have {elements} elements, a file alone may have {MOST_ELEMENTS}"
        )
    return Single(name, text, dsc, tensors, sizes, pool, updates)


def _tensor(op: dict[str, Any], label: dict[str, Any], node: dict[str, Any], pool: int, below: int) -> Tensor:
    dims = [dim for dim in op["dimOrder_"] if node["byteStrides_"][dim]]
    shape = [at["extent_"] for at in node["indirect_"]] + [op["N_"][f"{dim}_"] for dim in dims]
    strides = [at["stride_"] for at in node["indirect_"]] + [node["byteStrides_"][dim] for dim in dims]
    sticks = [bool(at["stick_"]) for at in node["indirect_"]] + [dim == node["stickDim_"] for dim in dims]
    operand: Operand = {
        "argument": label["argument_"] if label["argument_"] >= 0 else pool,
        "offset": node["startAddressCoreCorelet_"]["data_"]["[0, 0, 0]"] + max(label["poolOffset_"], 0),
        "strides": strides or [0],
        "format": label["dataFormat_"],
        "stick": sticks.index(True) if any(sticks) else -1,
    }
    return Tensor(shape, operand, label["dataFormat_"], below)


def inputs_of(op: Single) -> list[Tensor]:
    """What has to be given: the inputs, and a scatter's table behind them."""
    return op.tensors if op.updates else op.tensors[:-1]


def random_inputs(op: Single, seed: int) -> list[Array]:
    """Normal numbers, small integers, and indices that stay inside."""
    generator = np.random.default_rng(seed)

    def one(tensor: Tensor) -> Array:
        if tensor.index_below:
            return generator.integers(0, tensor.index_below, tensor.shape)
        if "INT" in tensor.format:
            return generator.integers(0, 100, tensor.shape)
        return generator.standard_normal(tensor.shape, np.float32)

    return [one(tensor) for tensor in inputs_of(op)]


def run(op: Single, inputs: list[Array]) -> Result:
    """Raises ValueError where the inputs do not fit the op."""
    wanted = inputs_of(op)
    if len(inputs) != len(wanted):
        raise ValueError(f"{op.name} takes {len(wanted)} inputs, {len(inputs)} are given")
    for i, (array, tensor) in enumerate(zip(inputs, wanted, strict=True)):
        if list(array.shape) != tensor.shape:
            raise ValueError(f"{op.name}: input {i} has the shape {list(array.shape)}, wanted is {tensor.shape}")
    memory = [torch.zeros(size // 2, dtype=torch.float16, device="spyre") for size in op.memory]
    for array, tensor in zip(inputs, wanted, strict=True):
        _move(memory, tensor, _dense(tensor, torch.from_numpy(np.ascontiguousarray(array))), put=True)
    description = compile_bundle(op.name, [op.text], op.memory[: op.arguments], 0)
    plan = _C.prepare_kernel(description | {"arguments": op.memory})  # the pool is ours here, to put inputs there
    stream = current_stream()
    before = stream.modelled_time()
    _C.launch_jobplan(plan, memory)
    microseconds = (stream.modelled_time() - before) * 1000
    output = op.tensors[-1]
    dense = _dense(output, torch.zeros(output.shape))
    _move(memory, output, dense, put=False)
    host = dense.cpu()
    return Result((host.float() if host.is_floating_point() else host).numpy().reshape(output.shape), microseconds)


def _dense(tensor: Tensor, values: torch.Tensor) -> torch.Tensor:
    """On the card in one row, so that the address of an element follows from its position."""
    return values.reshape(-1).to(TORCH_TYPES[tensor.format]).to("spyre")


def _move(memory: list[torch.Tensor], tensor: Tensor, dense: torch.Tensor, put: bool) -> None:
    """Copies between the row and the op's own layout, with a program of the card."""
    extents = tensor.shape or [1]
    element = STICK_BYTES // dense.device_tensor_layout().elems_per_stick()  # type: ignore[attr-defined]
    strides = [element * int(np.prod(extents[i + 1 :])) for i in range(len(extents))]
    row: Operand = {"argument": len(memory), "strides": strides, "format": tensor.format}
    operands = [tensor.operand, row] if put else [row, tensor.operand]
    step = compute_step(OPS["copy"], extents, [1] * len(extents), operands)
    sizes = [t.device_tensor_layout().device_bytes() for t in (*memory, dense)]  # type: ignore[attr-defined]
    code: KernelDescription = {
        "name": "place",
        "arguments": sizes,
        "steps": [{"type": "Compute", "program": {"steps": [step]}}],
    }
    _C.launch_jobplan(_C.prepare_kernel(code), [*memory, dense])
