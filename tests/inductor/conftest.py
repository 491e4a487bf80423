"""A compiler that knows one op: fp16 additions of whole sticks become kernels, the rest runs eagerly."""

import math
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from torch._dynamo.utils import counters
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from torch_spyre import _C
from torch_spyre._inductor import kernel_call, loop_ir

aten = torch.ops.aten


@pytest.fixture
def adder(monkeypatch, tmp_path) -> Iterator[dict[str, Counter]]:
    """torch.compile with the compiler of this file and empty caches; gives torch's counters."""
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()


@pytest.fixture
def adder_program(python, tmp_path) -> Callable[..., str]:
    """Run a program with the compiler of this file in a fresh interpreter; gives what it printed, errors included."""
    load = f"""
import runpy, sys
sys.modules.update(runpy.run_path({__file__!r})["modules"]())
import torch
from torch._dynamo.utils import counters
x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
"""

    def run(code: str, **environment: str) -> str:
        result = python(load + textwrap.dedent(code), **{"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), **environment})
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr

    return run


def modules() -> dict[str, ModuleType]:
    """The modules that this compiler takes the place of."""
    found = {}
    for name, function in (("partition", partition), ("compiler", compile_kernel)):
        found[f"torch_spyre._inductor.{name}"] = module = ModuleType(name)
        setattr(module, function.__name__, function)
    return found


def partition(gm: GraphModule) -> None:
    for node in list(gm.graph.nodes):
        value = node.meta.get("val")
        if not isinstance(node.target, torch._ops.OpOverload) or not on_card(value):
            continue
        if node.target is aten.add.Tensor and all(is_rows(arg) for arg in node.args):
            with gm.graph.inserting_before(node):
                (out,) = kernel_call.call_kernel(gm.graph, add_kernel(value), node.args, [value])
            node.replace_all_uses_with(out)
            gm.graph.erase_node(node)
        elif not node.target.is_view:
            kernel_call.fall_back(node)


def on_card(value: object) -> bool:
    return any(isinstance(each, torch.Tensor) and each.device.type == "spyre" for each in pytree.tree_leaves(value))


def is_rows(arg: object) -> bool:
    """A contiguous fp16 tensor of one stick per row."""
    value = arg.meta["val"] if isinstance(arg, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dim() == 2 and value.size(1) == 64 and value.is_contiguous()


def add_kernel(value: torch.Tensor) -> loop_ir.Kernel:
    size, stride = tuple(map(int, value.size())), tuple(map(int, value.stride()))
    buffers = {
        name: loop_ir.Buffer(name, value.dtype, size, stride, kind)
        for name, kind in (("a", "input"), ("b", "input"), ("out", "output"))
    }
    a, b, out = (loop_ir.Access(name, stride) for name in buffers)
    return loop_ir.Kernel("add", buffers, [loop_ir.LoopOp("add", size, out, (a, b))])


def compile_kernel(kernel: loop_ir.Kernel, signature: tuple) -> dict:
    """One op, row by row, wherever the layouts of the arguments put the rows."""
    (op,) = kernel.ops
    rows, outputs = op.sizes[0], kernel.outputs()
    arguments = dict(zip((b.name for b in kernel.inputs()), ((a.layout, a.offset) for a in signature), strict=True))
    arguments |= {b.name: (_C.SpyreTensorLayout(b.size, b.dtype), 0) for b in outputs}
    operands = []
    for access in (op.out, *op.ins):
        layout, offset = arguments[access.buffer]
        row = layout.stride_map.index(64) if rows > 1 else 0
        pitch = math.prod(layout.device_size[row + 1 :]) * 2
        position = list(arguments).index(access.buffer)
        operands.append({"argument": position, "strides": [pitch, 2], "offset": offset // 64 * pitch})
    step = {"op": "elementwise", "function": op.name, "extents": [rows, 64], "slices": [1, 1], "operands": operands}
    return {
        "name": kernel.name,
        "arguments": [layout.device_bytes() for layout, _ in arguments.values()],
        "allocate": [],
        "steps": [{"type": "Compute", "program": {"steps": [step]}}] if rows else [],
        "outputs": [
            {
                "size": list(buffer.size),
                "stride": list(buffer.stride),
                "dtype": str(buffer.dtype).removeprefix("torch."),
                "layout": {
                    "device_size": arguments[buffer.name][0].device_size,
                    "stride_map": arguments[buffer.name][0].stride_map,
                    "device_dtype": arguments[buffer.name][0].device_dtype.name,
                },
            }
            for buffer in outputs
        ],
    }
