"""Storages: how large they say they are, how they grow, shrink, are shared and copied."""

import pytest
import torch
from torch.spyre import DataFormats, SpyreTensorLayout

from torch_spyre import _C

DTYPES = [torch.float16, torch.float32, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool]


@pytest.mark.parametrize(
    ("size", "dtype", "nbytes"),
    [
        ((2,), torch.float16, 128),  # one stick
        ((), torch.float32, 128),
        ((65,), torch.float16, 256),
        ((3, 65), torch.float16, 3 * 256),
        ((64,), torch.int64, 512),  # 32 bits on the card, 64 on the host
        ((16,), torch.int64, 128),
        ((64,), torch.uint8, 256),  # 32 bits on the card, 8 on the host
        ((128,), torch.bool, 256),
        ((128,), torch.int8, 128),
        ((0,), torch.float16, 0),
        ((3, 0), torch.float32, 0),
    ],
)
def test_nbytes(size, dtype, nbytes):
    x = torch.zeros(size, dtype=dtype, device="spyre")
    assert x.untyped_storage().nbytes() == nbytes
    assert x.nbytes == x.numel() * x.element_size()


def test_device_memory_follows_the_layout():
    before = torch.spyre.memory_allocated()
    x = torch.zeros(4, 2, dtype=torch.float16, device="spyre")
    assert torch.spyre.memory_allocated() - before == 4 * 128
    del x
    assert torch.spyre.memory_allocated() == before


def test_storage_knows_its_device():
    storage = torch.zeros(2, device="spyre").untyped_storage()
    assert storage.device == torch.device("spyre:0")
    assert storage.resizable()


@pytest.mark.parametrize("dtype", DTYPES)
def test_resize_keeps_the_elements_in_host_order(dtype):
    host = torch.arange(60).remainder(2).to(dtype).reshape(6, 10)
    x = host.to("spyre").resize_(4, 20)
    assert (x.shape, x.stride()) == ((4, 20), (20, 1))
    assert torch.equal(x.flatten()[:60].cpu(), host.flatten())
    assert x.device_tensor_layout() == SpyreTensorLayout([4, 20], dtype)


def test_resize_to_less_keeps_memory_and_layout():
    x = torch.arange(60.0).reshape(6, 10).to("spyre")
    layout, pointer = x.device_tensor_layout(), x.data_ptr()
    x.resize_(2, 3)
    assert (x.data_ptr(), x.device_tensor_layout()) == (pointer, layout)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x.resize_(6, 10).cpu().flatten().tolist() == list(range(60))


def test_resize_to_the_same_size_keeps_strides():
    x = torch.arange(6.0).reshape(2, 3).to("spyre").t()
    assert x.resize_(3, 2).stride() == (1, 3)
    assert x.resize_as_(torch.empty(3, 2)).stride() == (1, 3)


def test_resize_of_a_slice_grows_the_shared_storage():
    x = torch.arange(10.0).to("spyre")
    tail = x[8:].resize_(6)
    tail[2:] = 7
    assert tail.tolist() == [8, 9, 7, 7, 7, 7]
    assert x.tolist() == list(range(10))
    tail[0] = 5
    assert x[8].item() == 5


@pytest.mark.parametrize("size", [(), (3,), (2, 70)])
def test_resize_of_an_empty_tensor_gives_the_default_layout(size):
    x = torch.empty(0, dtype=torch.float16, device="spyre").resize_(size)
    assert x.device_tensor_layout() == SpyreTensorLayout(list(size), torch.float16)
    assert x.fill_(2).cpu().unique().tolist() == [2]


def test_resize_of_an_explicit_layout_keeps_the_elements():
    host = torch.arange(24.0).reshape(4, 6).half()
    x = host.to(device_layout=SpyreTensorLayout([6, 1, 64], [1, -1, 6], DataFormats.SEN169_FP16))
    assert torch.equal(x.resize_(8, 6)[:4].cpu(), host)


def test_freeing_and_growing_back_a_storage():
    """What FSDP does with its shards: the layout is there again, the contents are not."""
    layout = SpyreTensorLayout([70, 1, 64], [1, -1, 70], DataFormats.SEN169_FP16)
    x = torch.ones(4, 70, dtype=torch.float16).to(device_layout=layout)
    before, nbytes = torch.spyre.memory_allocated(), x.untyped_storage().nbytes()
    x.untyped_storage().resize_(0)
    assert torch.spyre.memory_allocated() == before - layout.device_bytes()
    with pytest.raises(RuntimeError, match="storage was freed"):
        x.cpu()
    x.untyped_storage().resize_(nbytes)
    assert x.device_tensor_layout() == layout
    assert x.fill_(3).cpu().unique().tolist() == [3]


def test_a_freed_scalar_can_be_resized():
    x = torch.tensor(3.0, device="spyre")
    x.untyped_storage().resize_(0)
    assert x.resize_(2).fill_(4).tolist() == [4, 4]


def test_growing_a_storage_keeps_its_elements():
    x = torch.arange(10.0).to("spyre")
    x.untyped_storage().resize_(4 * 100)
    assert x.tolist() == list(range(10))
    assert x.resize_(100)[:10].tolist() == list(range(10))


def test_set_to_a_tensor_shares_its_storage():
    x, y = torch.zeros(2, device="spyre"), torch.arange(12.0).reshape(3, 4).to("spyre")
    x.set_(y.t())
    x[0, 1] = 99
    assert (x.shape, y[1, 0].item()) == ((4, 3), 99)


def test_set_to_part_of_a_storage():
    y = torch.arange(12.0).to("spyre")
    x = torch.empty(0, device="spyre").set_(y.untyped_storage(), 2, (2, 3), (5, 1))
    assert x.tolist() == [[2, 3, 4], [7, 8, 9]]
    with pytest.raises(RuntimeError, match="of a storage of 12 elements"):
        x.set_(y.untyped_storage(), 10, (5,), (1,))
    assert x.set_().shape == (0,)


def test_set_to_another_dtype_is_refused():
    y = torch.zeros(4, device="spyre")
    with pytest.raises(RuntimeError, match="this storage holds torch.float32 in the card's number format"):
        torch.empty(0, dtype=torch.float16, device="spyre").set_(y.untyped_storage(), 0, (4,), (1,))
    with pytest.raises(RuntimeError, match="cannot use a storage on cpu|on different devices|same device"):
        y.set_(torch.zeros(4).untyped_storage(), 0, (4,), (1,))


def test_data_assignment_shares():
    x, y = torch.zeros(2, device="spyre"), torch.arange(3.0).to("spyre")
    x.data = y
    y[0] = 5
    assert x.tolist() == [5, 1, 2]


def test_swap_tensors():
    a, b = torch.zeros(2, device="spyre"), torch.ones(3)
    torch.utils.swap_tensors(a, b)
    assert (a.device.type, b.device.type, b.tolist()) == ("cpu", "spyre", [0, 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_storage_as_host_bytes(dtype):
    """A storage copied to the host has the bytes that its elements have there, and zeros behind them."""
    host = torch.arange(70).remainder(2).to(dtype)
    bytes_there = host.to("spyre").untyped_storage().cpu()
    assert torch.equal(torch.empty(0, dtype=dtype).set_(bytes_there)[:70], host)
    assert not any(bytes_there[host.nbytes :])


@pytest.mark.parametrize("dtype", DTYPES)
def test_storage_from_host_bytes(dtype):
    host = torch.arange(70).remainder(2).to(dtype)
    storage = torch.UntypedStorage(host.nbytes, device="spyre")
    storage.copy_(host.untyped_storage())
    x = torch.empty(0, dtype=dtype, device="spyre").set_(storage, 0, (7, 10), (10, 1))
    assert torch.equal(x.cpu(), host.reshape(7, 10))
    assert x.device_tensor_layout() == SpyreTensorLayout([7, 10], dtype)


def test_untyped_bytes():
    storage = torch.UntypedStorage(10, device="spyre")
    storage.fill_(3)
    storage[2] = 250
    assert list(storage.cpu()) == [3, 3, 250, 3, 3, 3, 3, 3, 3, 3]
    assert storage[2] == 250 and storage[1] == 3
    storage.resize_(4)
    assert list(storage.cpu()) == [3, 3, 250, 3]


@pytest.mark.parametrize("dtype", DTYPES)
def test_storage_clone_keeps_the_layout(dtype):
    layout = SpyreTensorLayout([4, 70], [70, 1], dtype, [1, 0])
    host = torch.arange(280).remainder(2).to(dtype).reshape(4, 70)
    x = host.to(device_layout=layout)
    cloned = torch.empty(0, dtype=dtype, device="spyre").set_(x.untyped_storage().clone(), 0, (4, 70), (70, 1))
    assert cloned.device_tensor_layout() == layout
    x.zero_()
    assert torch.equal(cloned.cpu(), host)


def test_storage_copy_between_tensors():
    a, b = torch.ones(3, device="spyre"), torch.arange(3.0).to("spyre")
    a.untyped_storage().copy_(b.untyped_storage())
    assert a.tolist() == [0, 1, 2]
    host = torch.zeros(32)
    host.untyped_storage().copy_(b.untyped_storage())
    assert host[:4].tolist() == [0, 1, 2, 0]
    b.untyped_storage().copy_(torch.full((32,), 7.0).untyped_storage())
    assert b.tolist() == [7, 7, 7]


def test_storage_bytes_can_be_read_and_written_singly():
    x = torch.zeros(4, dtype=torch.int32, device="spyre")
    storage = x.untyped_storage()
    storage[4] = 5
    assert storage[4] == 5 and x.tolist() == [0, 5, 0, 0]
    storage.fill_(0)
    assert x.tolist() == [0, 0, 0, 0]


def test_two_layouts_of_one_memory():
    x = torch.arange(128.0).reshape(2, 64).half().to("spyre")
    alias = _C.as_strided_with_layout(x, [128], [1], 0, SpyreTensorLayout([2, 64], [64, 1], DataFormats.SEN169_FP16))
    x[1, 2] = 500
    assert alias[66].item() == 500
    with pytest.raises(RuntimeError, match="shares another's memory and cannot be made larger"):
        alias.resize_(500)


def test_views_keep_memory_alive():
    before = torch.spyre.memory_allocated()
    view = torch.ones(64, 64, dtype=torch.float16, device="spyre")[3]
    assert torch.spyre.memory_allocated() > before
    assert view.cpu().sum() == 64
    del view
    assert torch.spyre.memory_allocated() == before


def test_an_alias_stays_inside_its_memory():
    first = torch.zeros(64, dtype=torch.float16, device="spyre")
    second = torch.zeros_like(first)
    layout = first.device_tensor_layout()
    with pytest.raises(ValueError, match="cannot begin at storage offset -64"):
        _C.as_strided_with_layout(second, [64], [1], -64, layout)
    with pytest.raises(RuntimeError, match="stride"):
        _C.reinterpret_tensor_with_layout(second, [3], [-1], 2, layout)
    with pytest.raises(RuntimeError, match="reach"):
        _C.as_strided_with_layout(second, [64], [1], 64, layout)


@pytest.mark.parametrize("free", [lambda s: s.resize_(0), lambda s: s.resize_(1 << 20)])
def test_an_alias_of_freed_memory_is_refused(free):
    base = torch.ones(4, 64, dtype=torch.float16, device="spyre")
    alias = _C.as_strided_with_layout(base, [4, 64], [64, 1], 0, base.device_tensor_layout())
    assert alias.cpu().sum() == 256
    free(base.untyped_storage())
    with pytest.raises(RuntimeError, match="storage was freed"):
        alias.cpu()
