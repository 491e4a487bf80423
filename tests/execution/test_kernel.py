"""Kernels: compiled once per way that their inputs lie, launched with outputs of their own."""

import sys
import threading
import weakref
from types import ModuleType

import pytest
import torch

from torch_spyre import _C
from torch_spyre._inductor import loop_ir
from torch_spyre.execution.kernel import SpyreKernel, plan_for
from torch_spyre.execution.launches import listening

ROWS = _C.SpyreTensorLayout([4, 1, 64], [64, -1, 1], _C.DataFormats.SEN169_FP16)
OUT = {"size": [4, 64], "stride": [64, 1], "dtype": "float16"}


def text(*inputs: str) -> str:
    buffers = {name: loop_ir.Buffer(name, torch.float16, (4, 64), (64, 1), "input") for name in inputs}
    return loop_ir.Kernel("k", buffers, []).to_json()


@pytest.fixture
def compiled(monkeypatch) -> list:
    """Kernels copy their last input, element by element as it lies; gives the signatures that were compiled."""
    signatures = []

    def compile_kernel(kernel, signature):
        signatures.append(signature)
        position = len(signature) - 1
        layout = signature[-1].layout
        operands = [{"argument": argument, "strides": [128, 2]} for argument in (position + 1, position)]
        step = {"op": "copy", "extents": [4, 64], "slices": [4, 1], "operands": operands}
        fields = {"device_size": layout.device_size, "stride_map": layout.stride_map, "device_dtype": "SEN169_FP16"}
        return {
            "name": kernel.name,
            "arguments": [512] * (position + 2),
            "steps": [{"type": "Compute", "program": {"steps": [step]}}],
            "inputs": [(list(buffer.size), list(buffer.stride)) for buffer in kernel.inputs()],
            "outputs": [{**OUT, "layout": fields}],
        }

    module = ModuleType("compiler")
    module.compile_kernel = compile_kernel
    monkeypatch.setitem(sys.modules, "torch_spyre._inductor.compiler", module)
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")
    return signatures


def numbers() -> torch.Tensor:
    return torch.arange(256).view(4, 64).half().to("spyre")


def test_a_kernel_gives_its_outputs(compiled):
    (out,) = SpyreKernel(text("x"))(numbers())
    assert torch.equal(out.cpu(), numbers().cpu())


def test_compiled_once_per_layout_offset_and_sharing(compiled):
    kernel, x = SpyreKernel(text("x", "y")), numbers()
    for _ in range(2):
        kernel(x, x)
        kernel(x, numbers())
        kernel(x, numbers().to(device_layout=ROWS))
        for first in (2, 4):  # compiled as if it began in row 0
            kernel(torch.zeros(8, 64, dtype=torch.float16).to("spyre")[first : first + 4], numbers())
        kernel(torch.zeros(8, 64, dtype=torch.float16).to("spyre").view(-1)[32:288].view(4, 64), numbers())
    assert [[(argument.offset, argument.storage) for argument in signature] for signature in compiled] == [
        [(0, 0), (0, 0)],
        [(0, 0), (0, 1)],
        [(0, 0), (0, 1)],
        [(0, 0), (0, 1)],
        [(32, 0), (0, 1)],
    ]


@pytest.mark.parametrize("layout", [None, ROWS])
def test_outputs_have_the_layout_that_the_compiler_chose(compiled, layout):
    x = numbers() if layout is None else numbers().to(device_layout=layout)
    (out,) = SpyreKernel(text("x"))(x)
    assert out.device_tensor_layout() == x.device_tensor_layout()
    assert torch.equal(out.cpu(), x.cpu())


def test_a_kernel_without_steps_only_allocates(compiled, monkeypatch):
    layout = _C.SpyreTensorLayout([0, 64], torch.float16)
    fields = {"device_size": layout.device_size, "stride_map": layout.stride_map, "device_dtype": "SEN169_FP16"}
    description = {
        "name": "nothing",
        "steps": [],
        "inputs": [],
        "outputs": [{"size": [0, 64], "stride": [64, 1], "dtype": "float16", "layout": fields}],
    }
    monkeypatch.setattr(sys.modules["torch_spyre._inductor.compiler"], "compile_kernel", lambda *_: description)
    (out,) = SpyreKernel(text(), device=0)()
    assert out.shape == (0, 64)
    assert out.device.type == "spyre"


def test_a_plan_without_the_call(compiled):
    x = numbers()
    plan, (output,) = plan_for(loop_ir.from_json(text("x")), [x])
    out = torch.empty(output["size"], dtype=output["dtype"], device="spyre")
    _C.launch_jobplan(plan, [x, out])
    assert torch.equal(out.cpu(), x.cpu())


def test_threads_compile_once(compiled):
    kernel, x = SpyreKernel(text("x")), numbers()
    threads = [threading.Thread(target=kernel, args=(x,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1


def test_many_inputs_on_one_memory_are_found_among_many(compiled):
    kernel, many = SpyreKernel(text(*(f"x{i}" for i in range(40)))), [numbers() for _ in range(40)]
    kernel(*many)
    kernel(*reversed(many))
    assert len(compiled) == 1
    kernel(*many[:39], many[17])
    assert len(compiled) == 2
    assert compiled[1][39].storage == 17


@pytest.mark.parametrize(
    "wrong", [lambda x: x.as_strided((4, 64), (1, 4)), lambda x: x[:2], lambda x: x.view(2, 2, 64)]
)
@pytest.mark.parametrize("first", [True, False])
def test_an_input_of_another_shape_is_refused(compiled, wrong, first):
    kernel = SpyreKernel(text("x"))
    if not first:
        kernel(numbers())
    with pytest.raises(ValueError, match=r"compiled for sizes \[4, 64\] and strides \[64, 1\]"):
        kernel(wrong(numbers()))


def test_strides_that_nothing_steps_over_do_not_count(compiled):
    one = loop_ir.Buffer("x", torch.float16, (1, 64), (64, 1), "input")
    kernel = SpyreKernel(loop_ir.Kernel("k", {"x": one}, []).to_json())
    kernel(numbers()[:1].as_strided((1, 64), (7, 1)))


def test_what_is_no_tensor_of_the_card_is_refused(compiled):
    kernel = SpyreKernel(text("x"))
    with pytest.raises(TypeError, match="takes tensors, not int"):
        kernel(1)
    with pytest.raises(TypeError, match="by position"):
        kernel(x=numbers())
    with pytest.raises(TypeError, match="takes rows of integers from the host, not Float"):
        kernel(torch.zeros(4, 64))


def test_listeners_hear_of_launches_while_they_listen(compiled):
    kernel, heard = SpyreKernel(text("x")), []
    kernel(numbers())
    with listening(heard.append):
        kernel(numbers())
    kernel(numbers())
    assert [launch.plan.name for launch in heard] == ["k"]


def test_a_kernel_and_its_plan_are_let_go(compiled):
    kernel = SpyreKernel(text("x"))
    kernel(numbers())
    launches: list = []
    with listening(launches.append):
        kernel(numbers())
    gone = weakref.ref(kernel)
    before = sys.getrefcount(launches[0])
    del kernel
    after = sys.getrefcount(launches[0])
    assert gone() is None
    assert after == before - 1
