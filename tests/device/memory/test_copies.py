"""Copies between host and card and on the card: values, and what must not change."""

import pytest
import torch

from tests.dtypes import COMPUTED, STORED

pytestmark = pytest.mark.usefixtures("no_fallback")


@pytest.mark.parametrize("source", STORED)
@pytest.mark.parametrize("target", STORED)
def test_every_dtype_change_in_each_direction(source, target):
    host = torch.tensor([[0, 1, 2, 3, 4, 0], [6, 7, 5, 8, 0, 1]]).to(source)
    expected = host.to(target)
    assert torch.equal(host.to("spyre", target).cpu().float(), expected.float())  # host to card
    assert torch.equal(host.to("spyre").to("cpu", target).float(), expected.float())  # card to host
    assert torch.equal(host.to("spyre").to(target).cpu().float(), expected.float())  # on the card
    assert host.to("spyre").to(target).dtype == target


def test_float_to_integer_truncates():
    x = torch.tensor([-2.7, -0.5, 0.5, 2.7], device="spyre")
    assert x.to(torch.int32).tolist() == [-2, 0, 0, 2]
    assert x.to(torch.bool).tolist() == [True, True, True, True]


VIEWS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "a step": lambda x: x.repeat_interleave(2, 1)[:, ::2] if x.device.type == "cpu" else spread(x)[:, ::2],
    "inside a larger one": lambda x: inside(x),
}


def spread(x: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros(x.shape[0], 2 * x.shape[1], dtype=x.dtype, device=x.device)
    wide[:, ::2] = x
    return wide


def inside(x: torch.Tensor) -> torch.Tensor:
    large = torch.zeros(x.shape[0] + 3, x.shape[1] + 5, dtype=x.dtype, device=x.device)
    large[1:-2, 2:-3] = x
    return large[1:-2, 2:-3]


@pytest.mark.parametrize("source", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("target", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_non_contiguous_on_both_sides(source, target, dtype):
    host = torch.arange(7 * 100).remainder(500).to(dtype).reshape(7, 100)
    blank = torch.zeros(7, 100, dtype=dtype)
    assert torch.equal(target(blank.to("spyre")).copy_(source(host)).cpu(), host)
    assert torch.equal(target(blank).copy_(source(host.to("spyre"))), host)
    assert torch.equal(target(blank.to("spyre")).copy_(source(host.to("spyre"))).cpu(), host)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 1), (1, 5), (3, 1, 5)])
@pytest.mark.parametrize("source", ["cpu", "spyre"])
@pytest.mark.parametrize("target", ["cpu", "spyre"])
def test_broadcasting(shape, source, target):
    values = torch.randn(shape)
    copied = torch.zeros(3, 4, 5, device=target).copy_(values.to(source))
    assert torch.equal(copied.cpu(), values.expand(3, 4, 5))


@pytest.mark.parametrize("source", ["cpu", "spyre"])
def test_shapes_that_do_not_broadcast_are_refused(source):
    with pytest.raises(RuntimeError, match=r"\[3\] does not broadcast to the size of the destination \[2, 2\]"):
        torch.zeros(2, 2, device="spyre").copy_(torch.zeros(3, device=source))
    with pytest.raises(RuntimeError, match="does not broadcast"):
        torch.zeros(0, device="spyre").copy_(torch.zeros(3, device=source))


def test_overlapping_sources_are_read_as_they_are():
    host = torch.arange(10.0)
    windows = host.to("spyre").unfold(0, 4, 2)
    assert torch.equal(windows.clone().cpu(), host.unfold(0, 4, 2))
    assert torch.equal(host.unfold(0, 4, 2).to("spyre").cpu(), host.unfold(0, 4, 2))


def test_copies_between_overlapping_parts_are_refused():
    x = torch.arange(10.0).to("spyre")
    with pytest.raises(
        RuntimeError, match="some elements of the input tensor and the written-to tensor refer to a sin"
    ):
        x[1:].copy_(x[:-1])
    assert x.tolist() == list(range(10))
    assert x.copy_(x) is x
    assert x[:5].copy_(x[:5]).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("source", ["cpu", "spyre"])
@pytest.mark.parametrize("dtype", COMPUTED)
def test_writing_a_slice_does_not_touch_the_rest(source, dtype):
    base = torch.ones(6, 150, dtype=dtype, device="spyre")
    base[2:4, 60:70] = torch.zeros(2, 10, dtype=dtype, device=source)
    base[5, -1] = 0
    expected = torch.ones(6, 150, dtype=dtype)
    expected[2:4, 60:70] = 0
    expected[5, -1] = 0
    assert torch.equal(base.cpu(), expected)


def test_reading_a_slice_does_not_touch_the_rest_of_the_host():
    host = torch.ones(4, 10)
    host[1:3, 2:5] = torch.zeros(4, 10, device="spyre")[1:3, 2:5]
    assert host.sum() == 34


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**62])
def test_an_int64_that_does_not_fit_changes_nothing(value):
    x = torch.arange(4).to("spyre")
    with pytest.raises(ValueError, match=f"int64 value {value} does not fit the card"):
        x.copy_(torch.tensor([9, 9, value, 9]))
    with pytest.raises(ValueError, match="does not fit the card"):
        x.fill_(value)
    with pytest.raises(ValueError, match="does not fit the card"):
        x[1] = value
    assert x.tolist() == [0, 1, 2, 3]


def test_the_int64_range_is_32_bits():
    host = torch.tensor([-(2**31), 2**31 - 1])
    assert torch.equal(host.to("spyre").cpu(), host)


def test_int64_warns_until_told_not_to():
    torch.spyre.set_downcast_warning(True)
    with pytest.warns(UserWarning, match="Backend Spyre does not support int64"):
        torch.arange(3).to("spyre")
    torch.spyre.set_downcast_warning(False)
    assert not torch.spyre.get_downcast_warning()
    torch.arange(3).to("spyre")


@pytest.mark.parametrize("dtype", STORED)
def test_item_and_tolist(dtype):
    assert torch.tensor(1, dtype=dtype).to("spyre").item() == 1
    assert torch.tensor([[1]], dtype=dtype).to("spyre").item() == 1
    if dtype.itemsize > 1 or not dtype.is_floating_point:
        assert torch.tensor([0, 1], dtype=dtype).to("spyre").tolist() == [0, 1]


def test_python_scalars():
    x = torch.tensor([0.0, 2.5], device="spyre")
    assert (float(x[1]), int(x[1]), bool(x[0]), bool(x[1])) == (2.5, 2, False, True)
    assert f"{x[1]:.2f}" == "2.50"
    with pytest.raises(RuntimeError, match="a Tensor with 2 elements cannot be converted to Scalar"):
        x.item()


@pytest.mark.parametrize("dtype", COMPUTED)
def test_fills(dtype):
    x = torch.ones(3, 70, dtype=dtype, device="spyre")
    x[1].zero_()
    x[2, 65:].fill_(0)
    x[0, :2] = torch.tensor(0, device="spyre")
    expected = torch.ones(3, 70, dtype=dtype)
    expected[1], expected[2, 65:], expected[0, :2] = 0, 0, 0
    assert torch.equal(x.cpu(), expected)


def test_fill_with_one_of_its_own_elements():
    x = torch.arange(5.0).to("spyre")
    assert x.fill_(x[3]).tolist() == [3] * 5
    assert x.fill_(torch.tensor(4)).tolist() == [4] * 5
    with pytest.raises(RuntimeError, match="fill_ only supports 0-dimension value tensor"):
        x.fill_(torch.ones(2, device="spyre"))


def test_to_returns_the_same_tensor_where_nothing_changes():
    x = torch.ones(2, device="spyre")
    assert x.to("spyre") is x and x.to("spyre:0", torch.float32) is x and x.to(x) is x
    assert x.to("spyre", copy=True) is not x
    assert x.to("spyre", copy=True).data_ptr() != x.data_ptr()
    assert x.cpu().to("cpu").device.type == "cpu"


def test_to_keeps_strides():
    host = torch.arange(12.0).reshape(3, 4).t()
    assert host.to("spyre").stride() == host.to("spyre").cpu().stride() == (1, 4)
    assert torch.equal(host.to("spyre").cpu(), host)


def test_named_methods():
    x = torch.ones(2).spyre()
    assert x.is_spyre and not x.cpu().is_spyre
    assert x.half().dtype == torch.float16 and x.int().dtype == torch.int32
    assert x.type_as(torch.ones(1, dtype=torch.float16, device="spyre")).dtype == torch.float16


def test_clone_and_contiguous():
    x = torch.arange(12.0).reshape(3, 4).to("spyre")
    y = x.t().contiguous()
    assert y.is_contiguous() and torch.equal(y.cpu(), x.cpu().t())
    z = x.t().clone()
    z.zero_()
    assert z.stride() == (1, 4) and x.cpu().sum() == 66


def test_pinned_asynchronous_copies():
    host = torch.arange(1000.0).pin_memory()
    assert host.is_pinned()
    x = host.to("spyre", non_blocking=True)
    back = torch.empty(1000, pin_memory=True)
    back.copy_(x, non_blocking=True)
    torch.spyre.synchronize()
    assert torch.equal(back, host)


def test_pinned_memory_outlives_its_tensor():
    x = torch.zeros(4, 100000, device="spyre")
    for i in range(4):
        x[i].copy_(torch.full((100000,), float(i)).pin_memory(), non_blocking=True)
    assert x[:, ::9999].cpu().unique().tolist() == [0, 1, 2, 3]


def test_pinned_copies_do_not_wait():
    """A stream that is held up by a callback holds up the copy behind it, not the caller."""
    import threading

    from torch_spyre import _C

    let_go = threading.Event()
    host, x = torch.ones(64).pin_memory(), torch.zeros(64, device="spyre")
    _C.add_callback(0, torch.spyre.current_stream().stream_id, lambda: let_go.wait(60))
    x.copy_(host, non_blocking=True)
    assert not torch.spyre.current_stream().query()
    let_go.set()
    assert x.cpu().sum() == 64


def test_non_blocking_from_pageable_memory_is_safe_to_overwrite():
    host = torch.ones(100000)
    x = host.to("spyre", non_blocking=True)
    host.zero_()
    assert x.cpu().sum() == 100000


def test_non_blocking_to_the_host():
    x = torch.ones(1000, device="spyre")
    host = x.to("cpu", non_blocking=True)
    torch.spyre.synchronize()
    assert host.sum() == 1000


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1)])
def test_small_shapes(shape):
    host = torch.ones(shape, dtype=torch.float16)
    x = host.to("spyre")
    assert torch.equal(x.cpu(), host) and torch.equal(x.clone().cpu(), host)
    assert torch.equal(torch.zeros_like(x).copy_(x).cpu(), host)


def test_conjugate_and_negative_sources_are_resolved():
    host = torch._neg_view(torch.arange(3.0))
    assert host.to("spyre").tolist() == [0, -1, -2]


def test_copies_from_meta_are_refused():
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        torch.zeros(2, device="meta").to("spyre")
    assert torch.zeros(2, device="spyre").to("meta").device.type == "meta"


def test_host_access_is_refused_with_the_way_out():
    x = torch.ones(2, device="spyre")
    with pytest.raises(TypeError, match="can't convert spyre:0 device type tensor to numpy. Use Tensor.cpu()"):
        x.numpy()
    with pytest.raises(RuntimeError, match="belongs to one process and cannot be shared: send a CPU tensor"):
        x.share_memory_()


def test_printing():
    x = torch.tensor([[1.5, 2.0], [3.0, -1.0]], dtype=torch.float16, device="spyre")
    text = "tensor([[ 1.5000,  2.0000],\n        [ 3.0000, -1.0000]], device='spyre:0', dtype=torch.float16)"
    assert repr(x) == text
    assert repr(torch.zeros(0, device="spyre")) == "tensor([], device='spyre:0')"
    assert repr(torch.tensor(3, device="spyre")) == "tensor(3, device='spyre:0')"
    assert "requires_grad=True" in repr(x.requires_grad_())
    assert "..." in repr(torch.zeros(2000, device="spyre"))
