"""Bad input: every message says what was wrong; nothing is truncated, nothing crashes, the card stays usable."""

import re

import pytest
import torch
from torch.spyre import SpyreTensorLayout

import torch_spyre


@pytest.fixture(autouse=True)
def card_stays_usable():
    yield
    assert torch.ones(3, device="spyre").tolist() == [1, 1, 1]


MAKERS = {
    "empty": lambda device: torch.empty(3, device=device),
    "empty of nothing": lambda device: torch.empty(0, device=device),
    "strided": lambda device: torch.empty_strided((2, 2), (1, 2), device=device),
    "to": lambda device: torch.ones(3).to(device),
    "storage": lambda device: torch.UntypedStorage(128, device=device),
    "layout": lambda device: torch.empty(
        3, device=device, device_layout=SpyreTensorLayout([3], torch.float32), dtype=torch.float32
    ),
    "stream": lambda device: torch.Stream(device=device),
    "current stream": torch.accelerator.current_stream,
    "generator": torch.Generator,
    "synchronize": torch.accelerator.synchronize,
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("index", [1, 9, 100])
def test_wrong_device_index(make, index):
    message = (
        f"invalid device index {index}: this process sees 1 spyre card(s); AIU_WORLD_SIZE and SPYRE_DEVICES set which"
    )
    with pytest.raises(RuntimeError, match=re.escape(message)):
        MAKERS[make](f"spyre:{index}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex32, torch.complex128, torch.uint16, torch.uint64])
@pytest.mark.parametrize(
    "make", [lambda t: torch.empty(2, dtype=t, device="spyre"), lambda t: torch.ones(2, dtype=t).to("spyre")]
)
def test_unsupported_dtype(dtype, make):
    with pytest.raises(
        TypeError, match=f"Spyre backend does not support dtype {dtype}: the card has no such number format"
    ):
        make(dtype)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(1, 2, 3, 4, device="spyre", memory_format=torch.channels_last),
        lambda: torch.ones(1, 2, 3, 4).to("spyre", memory_format=torch.channels_last),
        lambda: torch.ones(1, 2, 3, 4, device="spyre").contiguous(memory_format=torch.channels_last),
        lambda: torch.ones(1, 2, 3, 4, device="spyre").to(memory_format=torch.channels_last),
        lambda: torch.nn.Conv2d(1, 1, 1).spyre().to(memory_format=torch.channels_last),
    ],
)
def test_channels_last(make):
    with pytest.raises(RuntimeError, match="Spyre backend only supports contiguous memory format"):
        make()


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**62])
def test_int64_values_that_do_not_fit(value):
    x = torch.zeros(3, dtype=torch.int64, device="spyre")
    for write in (
        lambda: torch.tensor([1, value]).to("spyre"),
        lambda: x.copy_(torch.tensor([1, value, 2])),
        lambda: x.fill_(value),
        lambda: torch.full((3,), value, device="spyre"),
    ):
        with pytest.raises(
            ValueError, match=f"int64 value {value} does not fit the card, which keeps int64 in 32 bits"
        ):
            write()
    assert x.tolist() == [0, 0, 0]


def test_int64_values_that_just_fit():
    x = torch.tensor([2**31 - 1, -(2**31)])
    assert torch.equal(x.to("spyre").cpu(), x)


def test_layout_too_small_for_the_tensor():
    with pytest.raises(
        ValueError, match=r"layout does not match a tensor of size \[4, 4\].*has no place in its layout"
    ):
        torch.ones(4, 4).to(device_layout=SpyreTensorLayout([2, 2], torch.float32))


def test_layout_of_another_format():
    message = "layout does not match the tensor: torch.float32 is IEEE_FP32 on the card, the layout says SEN169_FP16"
    with pytest.raises(RuntimeError, match=message):
        torch.ones(4, 4).to(device_layout=SpyreTensorLayout([4, 4], torch.float16))


def test_layout_for_a_tensor_elsewhere():
    with pytest.raises(ValueError, match="device_layout describes tensors on spyre, not on cpu"):
        torch.empty(4, device="cpu", device_layout=SpyreTensorLayout([4], torch.float32))


FREED_USES = {
    "cpu": lambda x: x.cpu(),
    "fill": lambda x: x.fill_(1),
    "copy to": lambda x: x.copy_(torch.ones(4)),
    "copy from": lambda x: torch.ones(4, device="spyre").copy_(x),
    "clone": lambda x: x.clone(),
    "add": lambda x: x + 1,
    "sum": lambda x: x.sum(),
    "print": repr,
}


@pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning")
@pytest.mark.parametrize("use", FREED_USES)
def test_freed_storage(use):
    x = torch.ones(4, device="spyre")
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="storage was freed"):
        FREED_USES[use](x)


def test_freed_storage_that_grew_back_is_usable():
    x = torch.ones(4, device="spyre")
    size = x.untyped_storage().nbytes()
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(size)
    assert x.fill_(2).tolist() == [2, 2, 2, 2]


def kernel(**changes):
    step = {
        "op": "copy",
        "extents": [64],
        "operands": [{"argument": 0, "strides": [2]}, {"argument": 1, "strides": [2]}],
        **changes,
    }
    program = {"steps": [step]}
    return {"name": "k", "arguments": [128, 128], "steps": [{"type": "Compute", "program": program}]}


MALFORMED = {
    "no name": ({}, "kernel: lacks the field 'name'"),
    "unknown step": ({"name": "k", "arguments": [], "steps": [{"type": "Jump"}]}, "unknown step type 'Jump'"),
    "unknown op": (kernel(op="explode"), "unknown operation 'explode'; the card knows copy, fill, restickify"),
    "no room": (kernel(extents=[65]), r"operand 0: reaches bytes \[0, 130\) of argument 0, which has 128"),
    "no such argument": (
        kernel(operands=[{"argument": 7, "strides": [2]}, {"argument": 0, "strides": [2]}]),
        "operand 0: argument 7 of 2",
    ),
    "an operand too few": (kernel(operands=[{"argument": 0, "strides": [2]}]), "operands: copy takes 2, has 1"),
    "wrong type": (kernel(extents="many"), "the field 'extents' has the wrong type: 'many'"),
    "negative extent": (kernel(extents=[-1]), "every extent must be at least 1, one is -1"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_program_is_refused(case):
    code, message = MALFORMED[case]
    with pytest.raises(ValueError, match=message):
        torch_spyre._C.prepare_kernel(code)


def test_program_with_too_small_a_tensor_is_not_run():
    plan = torch_spyre._C.prepare_kernel({**kernel(), "arguments": [128, 256]})
    to, source = (
        torch.zeros(2, 64, dtype=torch.float16, device="spyre"),
        torch.ones(64, dtype=torch.float16, device="spyre"),
    )
    with pytest.raises(ValueError, match="'k': argument 1 needs 256 bytes, the tensor has 128"):
        torch_spyre._C.launch_jobplan(plan, [to, source])
    assert not to.cpu().any()


def test_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError, match="card 0 is out of memory: asked for 8.00 TiB.*split it"):
        torch.empty(1 << 42, dtype=torch.float16, device="spyre")


def test_reinterpreting_bits():
    with pytest.raises(RuntimeError, match="their bits cannot be reinterpreted on the card"):
        torch.ones(4, device="spyre").view(torch.int32)


def test_storage_of_another_dtype():
    with pytest.raises(RuntimeError, match="this storage holds torch.float32 in the card's number format"):
        torch.empty(0, dtype=torch.float16, device="spyre").set_(
            torch.ones(4, device="spyre").untyped_storage(), 0, (4,)
        )
