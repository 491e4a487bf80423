"""How tensors lie on the card: the default layout, explicit layouts, and what moves them."""

import copy
import pickle

import pytest
import torch
from torch.spyre import DataFormats, SpyreTensorLayout

from torch_spyre import _C

FP16 = DataFormats.SEN169_FP16


def contiguous(size: list[int]) -> list[int]:
    return list(torch.empty(size, device="meta").stride())


@pytest.mark.parametrize(
    ("size", "device_size", "stride_map"),
    [
        ([], [1, 64], [-1, -1]),
        ([120], [2, 64], [64, 1]),
        ([1024, 256], [4, 1024, 64], [64, 256, 1]),
        ([5, 10, 200], [10, 4, 5, 64], [200, 64, 2000, 1]),
        ([5, 100, 150], [100, 3, 5, 64], [150, 64, 15000, 1]),
        ([512, 8, 240], [8, 4, 512, 64], [240, 64, 1920, 1]),
        ([2, 3, 4, 5], [3, 4, 1, 2, 64], [20, 5, -1, 60, 1]),
        ([1], [1, 64], [-1, -1]),
        ([7, 1], [1, 7, 64], [-1, 1, -1]),
        ([0, 5], [1, 0, 64], [-1, 5, 1]),
    ],
)
def test_default_layout(size, device_size, stride_map):
    layout = SpyreTensorLayout(size, torch.float16)
    assert (layout.device_size, layout.stride_map, layout.device_dtype) == (device_size, stride_map, FP16)
    assert torch.empty(size, dtype=torch.float16, device="spyre").device_tensor_layout() == layout


@pytest.mark.parametrize(
    ("order", "device_size", "stride_map"),
    [
        ([0, 1], [4, 512, 64], [64, 256, 1]),
        ([1, 0], [8, 256, 64], [16384, 1, 256]),
        ([0, 1, -1], [256, 1, 512, 64], [1, -1, 256, -1]),
    ],
)
def test_dim_order(order, device_size, stride_map):
    layout = SpyreTensorLayout([512, 256], [256, 1], torch.float16, order)
    assert (layout.device_size, layout.stride_map) == (device_size, stride_map)


@pytest.mark.parametrize(
    ("size", "order", "device_size", "stride_map"),
    [
        ([512, 8, 256], [0, 2, 1], [256, 1, 512, 64], [1, 16384, 2048, 256]),
        ([4, 50], [0, 1], [1, 4, 64], [64, 50, 1]),
        ([30, 70], [1, 0], [1, 70, 64], [4480, 1, 70]),
        ([40], [0], [1, 64], [64, 1]),
        ([5, 1], [0, 1], [1, 5, 64], [-1, 1, -1]),
        ([1, 50], [0, 1], [1, 1, 64], [64, -1, 1]),
    ],
)
def test_a_single_tile_of_a_given_order_keeps_its_stride(size, order, device_size, stride_map):
    layout = SpyreTensorLayout(size, contiguous(size), torch.float16, order)
    assert (layout.device_size, layout.stride_map) == (device_size, stride_map)
    host = torch.randint(0, 512, size).half()
    assert torch.equal(host.to("spyre", device_layout=layout).cpu(), host)


def test_one_value_per_stick_is_in_lane_0():
    host = torch.arange(60).half()
    x = host.to("spyre", device_layout=SpyreTensorLayout([1, 60, 64], [64, 1, 1], FP16))
    assert _C.get_transfers(x) == [((60,), (64,), (1,))]
    assert x.untyped_storage().nbytes() == 60 * 128
    assert torch.equal(x.cpu(), host)
    with pytest.raises(ValueError, match="coordinate 59 of a device dimension of 59"):
        host.to("spyre", device_layout=SpyreTensorLayout([1, 59, 64], [64, 1, 1], FP16))


@pytest.mark.parametrize(
    ("dtype", "stick"),
    [
        (torch.float16, 64),
        (torch.bfloat16, 64),
        (torch.bool, 64),
        (torch.float32, 32),
        (torch.int32, 32),
        (torch.int64, 32),
        (torch.uint8, 32),
        (torch.int16, 64),
        (torch.int8, 128),
        (torch.float8_e4m3fn, 128),
        (torch.float8_e5m2, 128),
    ],
)
def test_stick_of_each_dtype(dtype, stick):
    layout = SpyreTensorLayout([2, 200], dtype)
    assert layout.device_size == [-(-200 // stick), 2, stick]
    assert layout.elems_per_stick() == _C.get_elem_in_stick(dtype) == layout.device_dtype.elems_per_stick() == stick
    assert layout.device_dtype == torch.spyre.get_device_dtype(dtype)


def test_float64_has_no_layout():
    with pytest.raises(TypeError, match="Spyre backend does not support dtype torch.float64"):
        SpyreTensorLayout([4], torch.float64)


def test_constructors_agree_and_take_keywords():
    by_size = SpyreTensorLayout(host_size=[512, 256], dtype=torch.float16)
    by_order = SpyreTensorLayout(host_size=[512, 256], host_strides=[256, 1], dtype=torch.float16, dim_order=[0, 1])
    by_device = SpyreTensorLayout(device_size=[4, 512, 64], stride_map=[64, 256, 1], device_dtype=FP16)
    assert by_size == by_order == by_device
    assert len({by_size, by_order, by_device}) == 1


def test_text_is_exact():
    text = "SpyreTensorLayout(device_size=[4, 512, 64], stride_map =[64, 256, 1], device_dtype=DataFormats.SEN169_FP16)"
    assert str(SpyreTensorLayout([512, 256], torch.float16)) == text


def test_element_arrangement():
    exx2 = _C.ElementArrangement.EXX2
    plain = SpyreTensorLayout([4, 512, 64], [64, 256, 1], FP16)
    arranged = SpyreTensorLayout([4, 512, 64], [64, 256, 1], FP16, element_arrangement=exx2)
    by_order = SpyreTensorLayout([512, 256], [256, 1], torch.float16, [0, 1], element_arrangement=exx2)
    assert plain.element_arrangement == _C.ElementArrangement.STANDARD
    assert arranged == by_order == plain.with_element_arrangement(exx2) != plain
    assert [int(a) for a in _C.ElementArrangement.__members__.values()] == [0, 1, 2, 3]
    assert "EXX2" in str(arranged)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda layout: pickle.loads(pickle.dumps(layout))])
def test_copies_are_equal(again):
    layout = SpyreTensorLayout([4, 512, 64], [64, 256, 1], FP16, element_arrangement=_C.ElementArrangement.QFP8CH)
    assert again(layout) == layout
    assert hash(again(layout)) == hash(layout)


def test_layouts_differ_by_each_part():
    layouts = [
        SpyreTensorLayout([2, 64], [64, 1], FP16),
        SpyreTensorLayout([3, 64], [64, 1], FP16),
        SpyreTensorLayout([2, 64], [1, 2], FP16),
        SpyreTensorLayout([2, 64], [64, 1], DataFormats.SENINT16),
    ]
    assert len(set(layouts)) == 4
    assert layouts[0] != "a layout"


def test_data_formats_keep_their_values():
    values = {name: int(value) for name, value in DataFormats.__members__.items()}
    assert values["SEN169_FP16"] == 0 and values["IEEE_INT32"] == 12 and values["SEN18F_FP24"] == 18
    assert sorted(values.values()) == list(range(19))
    with pytest.raises(ValueError, match="does not store format SENINT4"):
        DataFormats.SENINT4.elems_per_stick()


EXPLICIT = {
    "padded rows": ([40, 60], [1, 48, 64], [-1, 60, 1]),
    "padded tiles": ([40, 70], [3, 40, 64], [64, 70, 1]),
    "a synthetic dimension": ([40, 60], [3, 40, 64], [-1, 60, 1]),
    "expanded": ([40, 60], [3, 1, 40, 64], [0, -1, 60, 1]),
    "folded": ([40, 60], [38, 64], [64, 1]),
    "viewed": ([40, 60], [5, 1, 8, 64], [480, -1, 60, 1]),
    "permuted": ([40, 60], [60, 1, 64], [1, -1, 60]),
    "permuted 3-d": ([4, 6, 70], [4, 2, 6, 64], [420, 64, 70, 1]),
    "tiled twice": ([128, 256], [4, 2, 64, 64], [64, 16384, 256, 1]),
    "stick over two dimensions": ([8, 16, 4], [8, 1, 64], [64, -1, 1]),
    "sparse": ([40, 60], [60, 1, 40, 64], [1, -1, 60, -1]),
    "one element": ([], [1, 64], [-1, -1]),
    "one value per stick": ([60], [1, 60, 64], [64, 1, 1]),
    "rows of one value per stick": ([4, 60], [4, 60, 64], [60, 1, 1]),
    "tiles of one value per stick": ([4, 128], [2, 4, 64, 64], [64, 128, 1, 1]),
    "columns of one value per stick": ([40, 60], [40, 60, 64], [60, 1, 60]),
    "a single tile with its stride": ([40, 60], [1, 40, 64], [64, 60, 1]),
    "a single turned tile with its stride": ([6, 4, 50], [50, 1, 6, 64], [1, 3200, 200, 50]),
}


@pytest.mark.parametrize(("size", "device_size", "stride_map"), EXPLICIT.values(), ids=EXPLICIT)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.bool])
def test_explicit_layouts_hold_every_element(size, device_size, stride_map, dtype):
    layout = SpyreTensorLayout(device_size, stride_map, FP16)
    host = torch.randint(0, 2 if dtype == torch.bool else 512, size).to(dtype)
    tensor = host.to("spyre", device_layout=layout)
    assert tensor.device_tensor_layout() == layout
    assert torch.equal(tensor.cpu(), host)
    assert tensor.untyped_storage().nbytes() == max(layout.device_bytes(), host.nbytes)
    tensor.zero_()
    if size:
        tensor[1:3] = host[1:3]
        expected = torch.zeros_like(host)
        expected[1:3] = host[1:3]
        assert torch.equal(tensor.cpu(), expected)


@pytest.mark.parametrize(("size", "device_size", "stride_map"), EXPLICIT.values(), ids=EXPLICIT)
def test_explicit_layouts_copy_into_each_other(size, device_size, stride_map):
    layout = SpyreTensorLayout(device_size, stride_map, FP16)
    host = torch.randint(0, 512, size).half()
    plain = host.to("spyre")
    assert torch.equal(plain.to(device_layout=layout).to(device_layout=plain.device_tensor_layout()).cpu(), host)


@pytest.mark.parametrize(("size", "device_size", "stride_map"), EXPLICIT.values(), ids=EXPLICIT)
def test_explicit_layouts_compute(size, device_size, stride_map):
    def function(x, y):
        z = x * 2 + y
        turned = z.transpose(0, 1) if z.dim() > 1 else z
        product = z.reshape(-1, z.shape[-1] if z.dim() else 1)
        return (
            z,
            z.sum(),
            z.sum(-1),
            turned.sum(-1),
            turned.contiguous(),
            product @ product.t(),
            x[1:] if x.dim() else x,
        )

    host = torch.randint(0, 4, size).half()
    plain = host.to("spyre")
    laid = host.to("spyre", device_layout=SpyreTensorLayout(device_size, stride_map, FP16))
    torch._dynamo.reset()
    for run in (function, torch.compile(function, fullgraph=True, dynamic=False)):
        for expected, first, second in zip(run(plain, plain), run(laid, plain), run(plain, laid), strict=True):
            assert torch.equal(first.cpu(), expected.cpu()) and torch.equal(second.cpu(), expected.cpu())
    laid += plain
    assert torch.equal(laid.cpu(), host * 2)
    assert torch.equal(copy.deepcopy(laid).cpu(), host * 2) and torch.equal(laid.clone().cpu(), host * 2)


@pytest.mark.parametrize(("size", "device_size", "stride_map"), EXPLICIT.values(), ids=EXPLICIT)
def test_explicit_layouts_are_saved(size, device_size, stride_map, tmp_path):
    host = torch.randint(0, 512, size).half()
    laid = host.to("spyre", device_layout=SpyreTensorLayout(device_size, stride_map, FP16))
    torch.save(laid, tmp_path / "x.pt")
    assert torch.equal(torch.load(tmp_path / "x.pt", map_location="cpu"), host)
    assert torch.equal(torch.load(tmp_path / "x.pt").cpu(), host)


def test_to_with_its_own_layout_is_the_tensor_itself():
    x = torch.ones(4, 60, dtype=torch.float16).to(device_layout=SpyreTensorLayout([5, 64], [60, 1], FP16))
    assert x.to(device_layout=x.device_tensor_layout()) is x
    copied = x.to(device_layout=x.device_tensor_layout(), copy=True)
    assert copied is not x and torch.equal(copied.cpu(), x.cpu())


def test_to_converts_and_lays_out_in_one_call():
    layout = SpyreTensorLayout([4, 70], [70, 1], torch.float32, [1, 0])
    host = torch.arange(280).reshape(4, 70)
    x = host.to("spyre:0", torch.float32, device_layout=layout)
    assert (x.device_tensor_layout(), x.dtype) == (layout, torch.float32)
    assert torch.equal(x.cpu(), host.float())


def test_empty_with_layout():
    layout = SpyreTensorLayout([3, 64], [60, 1], FP16)
    x = torch.empty(2, 60, dtype=torch.float16, device_layout=layout)
    y = torch.empty((2, 60), dtype=torch.float16, device="spyre", device_layout=layout, requires_grad=True)
    assert x.device_tensor_layout() == y.device_tensor_layout() == layout
    assert x.device.type == "spyre" and y.requires_grad
    with pytest.raises(ValueError, match="device_layout describes tensors on spyre, not on cpu"):
        torch.empty(2, 60, device="cpu", device_layout=layout)


def test_without_a_layout_nothing_changes():
    assert torch.empty(2, device_layout=None).device.type == "cpu"
    assert torch.ones(2).to(torch.float16, device_layout=None).dtype == torch.float16
    assert torch.ones(2).device_tensor_layout() is None


def test_views_keep_the_layout_of_their_storage():
    x = torch.empty(4, 100, dtype=torch.float16, device="spyre")
    assert x.t()[3:].device_tensor_layout() == x.device_tensor_layout()


def test_clone_keeps_an_explicit_layout():
    layout = SpyreTensorLayout([60, 1, 64], [1, -1, 60], FP16)
    host = torch.randn(40, 60).half().to("spyre").cpu()
    x = host.to(device_layout=layout)
    assert x.clone().device_tensor_layout() == layout
    assert torch.equal(x.clone().cpu(), host)
    assert x.clone(memory_format=torch.contiguous_format).device_tensor_layout() != layout
    assert torch.equal(x[3:].clone().cpu(), host[3:])


def test_transfer_of_a_matrix():
    x = torch.empty(1024, 256, dtype=torch.float16, device="spyre")
    assert _C.get_transfers(x) == [((4, 1024, 64), (65536, 64, 1), (64, 256, 1))]


def test_transfer_of_a_slice_touches_its_elements_only():
    x = torch.empty(4, 100, dtype=torch.float16, device="spyre")
    pieces = _C.get_transfers(x[1:3, 60:70])
    elements = sum(torch.Size(ranges).numel() for ranges, _, _ in pieces)
    assert elements == 20 and len(pieces) == 2


def test_one_memory_under_two_layouts():
    x = torch.arange(128, dtype=torch.float16).reshape(2, 64).to("spyre")
    flat = SpyreTensorLayout([2, 64], [64, 1], FP16)
    alias = _C.as_strided_with_layout(x, [128], [1], 0, flat)
    alias[5] = 99
    assert x[0, 5].item() == 99 and alias.device_tensor_layout() == flat
    assert alias.data_ptr() == x.data_ptr()
    del x
    assert alias[5].item() == 99
    with pytest.raises(RuntimeError, match="the layout needs 384 bytes, the storage it should share has 256"):
        _C.reinterpret_tensor_with_layout(alias, [192], [1], 0, SpyreTensorLayout([3, 64], [64, 1], FP16))


def test_set_layout_reinterprets_the_memory():
    x = torch.arange(4096, dtype=torch.float16).reshape(64, 64).remainder(512).to("spyre")
    host = x.cpu()
    _C.set_spyre_tensor_layout(x, SpyreTensorLayout([64, 64], [64, 1], torch.float16, [1, 0]))
    assert torch.equal(x.cpu(), host.t())


@pytest.mark.parametrize(
    ("device_size", "stride_map", "message"),
    [
        ([4, 512, 32], [64, 256, 1], "the last device dimension is one stick of 64 elements"),
        ([4, 64], [64, 256, 1], "device_size and stride_map need the same rank"),
        ([], [], "the same rank of at least 1"),
        ([-1, 64], [64, 1], "sizes must not be negative"),
        ([4, 64], [-2, 1], "strides not below -1"),
        ([4, 4, 64], [64, 64, 1], "two device dimensions step by the same host stride 64"),
    ],
)
def test_impossible_layouts_are_refused(device_size, stride_map, message):
    with pytest.raises(ValueError, match=message):
        SpyreTensorLayout(device_size, stride_map, FP16)


@pytest.mark.parametrize(
    ("order", "message"),
    [([0, 0], "must name each of the 2 host dimensions once"), ([0], "must name each"), ([-1, 0, 1], "must name each")],
)
def test_wrong_orders_are_refused(order, message):
    with pytest.raises(ValueError, match=message):
        SpyreTensorLayout([512, 256], [256, 1], torch.float16, order)


@pytest.mark.parametrize(
    ("device_size", "stride_map"),
    [
        ([1, 39, 64], [-1, 60, 1]),  # a row short
        ([40, 64], [64, 1]),  # 2560 places, in rows of 64: fine for a fold
        ([40, 64], [128, 1]),  # every other stick of the host is missing
        ([20, 64], [60, 2]),
    ],
)
def test_layouts_that_do_not_hold_the_tensor_are_refused(device_size, stride_map):
    layout = SpyreTensorLayout(device_size, stride_map, FP16)
    host = torch.zeros(40, 60, dtype=torch.float16)
    if stride_map == [64, 1]:
        assert torch.equal(host.to(device_layout=layout).cpu(), host)
        return
    with pytest.raises(ValueError, match=r"layout does not match a tensor of size \[40, 60\]"):
        host.to(device_layout=layout)


def test_layouts_of_another_format_are_refused():
    layout = SpyreTensorLayout([2, 64], torch.float32)
    with pytest.raises(RuntimeError, match="torch.float16 is SEN169_FP16 on the card, the layout says IEEE_FP32"):
        torch.zeros(2, 64, dtype=torch.float16).to(device_layout=layout)


def test_padding_does_not_alias_the_next_row():
    """The tail of a padded row is no place of the host tensor: what is written there shows nowhere."""
    padded = torch.zeros(4, 70, dtype=torch.float16).to(device_layout=SpyreTensorLayout([4, 3, 64], [70, 64, 1], FP16))
    padded[1] = 7
    expected = torch.zeros(4, 70, dtype=torch.float16)
    expected[1] = 7
    assert torch.equal(padded.cpu(), expected)


def test_a_host_size_is_not_negative():
    with pytest.raises(ValueError, match=r"host_size \[-4, 64\] has a negative dimension"):
        SpyreTensorLayout([-4, 64], torch.float16)
