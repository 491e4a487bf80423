"""A compiler that knows one op: fp16 additions of whole sticks become kernels, the rest runs eagerly."""

import sys
from types import ModuleType

import pytest
import torch
from torch.fx import GraphModule

from torch_spyre import _C
from torch_spyre._inductor import kernel_call, loop_ir

aten = torch.ops.aten


def partition(gm: GraphModule) -> None:
    for node in list(gm.graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor) or value.device.type != "spyre":
            continue
        if node.target is aten.add.Tensor and all(isinstance(arg, torch.fx.Node) for arg in node.args):
            with gm.graph.inserting_before(node):
                (out,) = kernel_call.call_kernel(gm.graph, add_kernel(value), node.args, [value])
            node.replace_all_uses_with(out)
            gm.graph.erase_node(node)
        elif not node.target.is_view:
            kernel_call.fall_back(node)


def add_kernel(value: torch.Tensor) -> loop_ir.Kernel:
    size, stride = tuple(value.size()), tuple(value.stride())
    buffers = {
        name: loop_ir.Buffer(name, value.dtype, size, stride, kind)
        for name, kind in (("a", "input"), ("b", "input"), ("out", "output"))
    }
    a, b, out = (loop_ir.Access(name, stride) for name in buffers)
    return loop_ir.Kernel("add", buffers, [loop_ir.LoopOp("add", size, out, (a, b))])


def compile_kernel(kernel: loop_ir.Kernel, signature: tuple) -> dict:
    """All operands in the first input's layout, element by element in the order that they lie there."""
    layout = signature[0].layout
    assert all(argument.layout == layout for argument in signature)
    out = kernel.outputs()[0]
    sticks = layout.device_bytes() // 128
    step = {
        "op": "elementwise",
        "function": "add",
        "extents": [sticks, 64],
        "slices": [1, 1],
        "operands": [{"argument": position, "strides": [128, 2]} for position in (2, 0, 1)],
    }
    return {
        "name": kernel.name,
        "arguments": [layout.device_bytes()] * 3,
        "allocate": [],
        "steps": [{"type": "Compute", "program": {"steps": [step]}}] if sticks else [],
        "outputs": [
            {
                "size": list(out.size),
                "stride": list(out.stride),
                "dtype": str(out.dtype).removeprefix("torch."),
                "layout": {
                    "device_size": layout.device_size,
                    "stride_map": layout.stride_map,
                    "device_dtype": layout.device_dtype.name,
                },
            }
        ],
    }
