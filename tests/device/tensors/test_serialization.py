"""Saving, loading, copying and exchanging tensors and modules."""

import copy
import io
import pickle
import weakref
from multiprocessing.reduction import ForkingPickler

import numpy
import pytest
import torch
from torch.spyre import DataFormats, SpyreTensorLayout

from tests.dtypes import STORED
from torch_spyre import _C


def saved(thing: object, **kwargs) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(thing, file, **kwargs)
    file.seek(0)
    return file


def sample(dtype: torch.dtype, *size: int) -> torch.Tensor:
    return torch.arange(torch.Size(size).numel()).remainder(2).to(dtype).reshape(size)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("location", [None, "cpu", "spyre", "spyre:0"])
def test_saved_from_the_card(dtype, location):
    host = sample(dtype, 3, 70)
    loaded = torch.load(saved(host.to("spyre")), map_location=location)
    assert loaded.device == torch.device("cpu" if location == "cpu" else "spyre:0")
    assert torch.equal(loaded.cpu(), host)


@pytest.mark.parametrize("dtype", STORED)
def test_saved_from_the_host_loaded_to_the_card(dtype):
    host = sample(dtype, 3, 70)
    loaded = torch.load(saved(host), map_location="spyre")
    assert torch.equal(loaded.cpu(), host)
    assert loaded.device_tensor_layout() == SpyreTensorLayout([3, 70], dtype)


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("zipped", [True, False])
def test_each_file_format(weights_only, zipped):
    x = torch.randn(4, 5).to("spyre")
    file = saved({"x": x, "n": 3}, _use_new_zipfile_serialization=zipped)
    loaded = torch.load(file, weights_only=weights_only)
    assert torch.equal(loaded["x"].cpu(), x.cpu()) and loaded["x"].device == x.device


def test_mmap(tmp_path):
    host = torch.randn(4, 5)
    torch.save(host, tmp_path / "x.pt")
    assert torch.equal(torch.load(tmp_path / "x.pt", mmap=True, map_location="spyre").cpu(), host)


def test_map_location_takes_functions_dictionaries_and_devices():
    file = saved(torch.arange(3.0).to("spyre"))
    for location in (torch.device("cpu"), {"spyre:0": "cpu"}, lambda storage, _: storage):
        file.seek(0)
        assert torch.load(file, map_location=location).tolist() == [0, 1, 2]


@pytest.mark.parametrize("location", ["cpu", "spyre"])
def test_tied_tensors_and_views_stay_tied(location):
    base = torch.arange(140.0).reshape(2, 70).to("spyre")
    loaded = torch.load(saved([base, base, base[1, 60:], base.t()]), map_location=location)
    assert loaded[0] is loaded[1]
    assert torch.equal(loaded[2].cpu(), base.cpu()[1, 60:]) and torch.equal(loaded[3].cpu(), base.cpu().t())
    loaded[0][1, 65] = -1
    assert loaded[2][5].item() == -1 and loaded[3][65, 1].item() == -1


def test_a_view_alone():
    base = torch.arange(140.0).reshape(2, 70).to("spyre")
    assert torch.equal(torch.load(saved(base[1, 3:60:2])).cpu(), base.cpu()[1, 3:60:2])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1)])
def test_small_shapes(shape):
    loaded = torch.load(saved(torch.ones(shape, device="spyre")))
    assert loaded.device.type == "spyre" and torch.equal(loaded.cpu(), torch.ones(shape))


def test_saving_an_explicit_layout_saves_its_values():
    host = torch.arange(280.0).reshape(4, 70).half()
    x = host.to(device_layout=SpyreTensorLayout([4, 70], [70, 1], torch.float16, [1, 0]))
    assert torch.equal(torch.load(saved(x)).cpu(), host)


def test_requires_grad_and_parameters_survive():
    loaded = torch.load(saved(torch.nn.Parameter(torch.ones(2, device="spyre"))), weights_only=False)
    assert isinstance(loaded, torch.nn.Parameter) and loaded.requires_grad and loaded.is_leaf


@pytest.mark.parametrize("dtype", [d for d in STORED if d.itemsize > 1 or not d.is_floating_point])
def test_pickle(dtype):
    host = sample(dtype, 3, 70)
    again = pickle.loads(pickle.dumps(host.to("spyre")))
    assert again.device.type == "spyre" and torch.equal(again.cpu(), host)


@pytest.mark.parametrize("dtype", STORED)
def test_deepcopy(dtype):
    host = sample(dtype, 3, 70)
    x = host.to("spyre")
    again = copy.deepcopy(x)
    x.zero_()
    assert torch.equal(again.cpu(), host)


def test_deepcopy_keeps_layout_ties_and_gradients():
    layout = SpyreTensorLayout([70, 1, 64], [1, -1, 70], DataFormats.SEN169_FP16)
    x = sample(torch.float16, 4, 70).to(device_layout=layout).requires_grad_()
    x.grad = torch.ones_like(x)
    first, second, view = copy.deepcopy([x, x, x.detach()[1]])
    assert first is second and first.device_tensor_layout() == layout and first.requires_grad
    assert torch.equal(first.grad.cpu(), x.grad.cpu()) and first.grad is not x.grad
    assert view.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
    parameter = copy.deepcopy(torch.nn.Parameter(x.detach()))
    assert parameter.device_tensor_layout() == layout


def test_copy_shares():
    x = torch.zeros(2, device="spyre")
    copy.copy(x)[0] = 1
    assert x.tolist() == [1, 0]


def tied() -> torch.nn.Sequential:
    model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8, bias=False))
    model[1].weight = model[0].weight
    return model


def test_module_to_keeps_parameters_and_ties():
    model = tied()
    weight, values = model[0].weight, model[0].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    assert model.to("spyre") is model
    assert model[0].weight is model[1].weight is weight
    assert weight.device.type == "spyre" and torch.equal(weight.detach().cpu(), values)
    assert optimizer.param_groups[0]["params"] == [weight]
    model.cpu()
    assert model[0].weight is weight and torch.equal(weight.detach(), values)


def test_module_to_moves_gradients_and_buffers():
    model = torch.nn.BatchNorm1d(3)
    model.weight.grad = torch.ones(3)
    model.spyre()
    assert {t.device.type for t in [*model.parameters(), *model.buffers(), model.weight.grad]} == {"spyre"}
    assert model.weight.grad.tolist() == [1, 1, 1]


def test_module_to_dtype_and_device():
    model = torch.nn.Linear(3, 2).to("spyre", torch.float16)
    assert model.weight.dtype == torch.float16 and model.weight.device.type == "spyre"
    assert model.to(torch.float32).weight.dtype == torch.float32


def test_module_moves_that_do_not_concern_the_card_are_untouched():
    model = torch.nn.Linear(3, 2)
    weight = model.weight
    assert model.half().weight is weight and weight.dtype == torch.float16
    assert torch.nn.Linear(2, 2, device="meta").to_empty(device="spyre").weight.device.type == "spyre"


def test_a_watched_parameter_moves_too():
    model = torch.nn.Linear(3, 2)
    watch = weakref.ref(model.weight)
    model.to("spyre")
    assert model.weight.device.type == "spyre" and watch() is model.weight


def test_a_model_moves_while_a_graph_of_it_lives_and_trains_with_its_optimizer():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    graph = model(torch.randn(2, 4))
    model.to("spyre")
    before = model[0].weight.detach().cpu().clone()
    model(torch.randn(2, 4, device="spyre")).sum().backward()
    optimizer.step()
    assert graph.grad_fn is not None and model[0].weight.grad.device.type == "spyre"
    assert not torch.equal(model[0].weight.detach().cpu(), before)
    assert {p.device.type for p in model.cpu().parameters()} == {"cpu"}


def test_modules_without_shapes_yet_move_on_the_cpu_as_ever():
    assert torch.nn.LazyLinear(5).to("cpu").half()(torch.ones(2, 3, dtype=torch.float16)).shape == (2, 5)


@pytest.mark.parametrize("rows", [1, 5])
def test_zeros_behind_the_first_tensor_of_a_storage_keep_their_place(rows):
    """The first tensor to be loaded does not show how far the storage reaches."""
    whole = torch.zeros(rows * 64, dtype=torch.float16)
    part = whole[: rows * 50].view(rows, 50)
    part.fill_(1)
    loaded_part, loaded = torch.load(saved([part, whole]), map_location="spyre")
    assert torch.equal(loaded.cpu(), whole) and torch.equal(loaded_part.cpu(), part)
    loaded[0] = 5
    assert loaded_part[0, 0].item() == 5


@pytest.mark.parametrize("location", ["cpu", "spyre"])
def test_state_dict(location):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("spyre")
    state = torch.load(saved(model.state_dict()), map_location=location)
    fresh = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("spyre")
    assert str(fresh.load_state_dict(state)) == "<All keys matched successfully>"
    for name, tensor in fresh.state_dict().items():
        assert tensor.device.type == "spyre" and torch.equal(tensor.cpu(), model.state_dict()[name].cpu()), name


def test_state_dict_assigned():
    model = torch.nn.Linear(3, 4, device="meta")
    state = {"weight": torch.ones(4, 3, device="spyre"), "bias": torch.ones(4, device="spyre")}
    model.load_state_dict(state, assign=True)
    assert model.weight.device.type == "spyre"


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {str(d): sample(d, 3, 70) for d in STORED}
    safetensors.save_file({k: t.to("spyre") for k, t in tensors.items()}, tmp_path / "x.safetensors")
    for device in ("spyre", "spyre:0", torch.device("spyre")):
        loaded = safetensors.load_file(tmp_path / "x.safetensors", device=device)
        assert loaded.keys() == tensors.keys()
        for name, tensor in loaded.items():
            assert tensor.device.type == "spyre" and torch.equal(tensor.cpu(), tensors[name]), name
    assert safetensors.load_file(tmp_path / "x.safetensors")["torch.float16"].device.type == "cpu"


def test_safetensors_model(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model = tied()
    safetensors.save_model(model.to("spyre"), tmp_path / "m.safetensors")
    fresh = tied().to("spyre")
    safetensors.load_model(fresh, tmp_path / "m.safetensors", device="spyre")
    assert torch.equal(fresh[1].weight.detach().cpu(), model[0].weight.detach().cpu())


def test_safe_open(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    from safetensors.torch import save_file

    host = torch.arange(12.0).reshape(3, 4)
    save_file({"x": host}, tmp_path / "x.safetensors", metadata={"format": "pt"})
    with safetensors.safe_open(tmp_path / "x.safetensors", framework="pt", device="spyre") as file:
        assert list(file.keys()) == ["x"] and file.metadata() == {"format": "pt"}
        assert file.get_tensor("x").device.type == "spyre"
        part = file.get_slice("x")[1:, :2]
        assert part.device.type == "spyre" and torch.equal(part.cpu(), host[1:, :2])
        assert file.get_slice("x").get_shape() == [3, 4]


@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x[1:], lambda x: x.t()[3:], lambda x: x[::2, 5::3], lambda x: x[1, 2]]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64, torch.uint8])
def test_dlpack_shares_memory(view, dtype):
    base = torch.arange(280).remainder(100).to(dtype).reshape(4, 70).to("spyre")
    x = view(base)
    y = torch.from_dlpack(x)
    assert (y.device, y.dtype, y.shape, y.stride()) == (x.device, x.dtype, x.shape, x.stride())
    assert torch.equal(y.cpu(), x.cpu())
    y.fill_(99)
    assert torch.equal(x.cpu(), torch.full_like(x.cpu(), 99))
    assert (base.cpu() == 99).sum() >= x.numel()


def test_dlpack_of_an_explicit_layout():
    host = torch.arange(280.0).reshape(4, 70).half()
    x = host.to(device_layout=SpyreTensorLayout([4, 70], [70, 1], torch.float16, [1, 0]))
    y = torch.from_dlpack(x[1:])
    assert torch.equal(y.cpu(), host[1:]) and y.device_tensor_layout() == x.device_tensor_layout()


def test_dlpack_keeps_memory_alive():
    y = torch.from_dlpack(torch.full((3,), 7.0, device="spyre"))
    torch.zeros(3, device="spyre")
    assert y.tolist() == [7, 7, 7]
    z = torch.from_dlpack(y[1:])
    del y
    assert z.tolist() == [7, 7]


def test_dlpack_capsules_and_copies():
    x = torch.arange(6.0).to("spyre")
    assert torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)).tolist() == x.tolist()
    copied = torch.from_dlpack(x, copy=True)
    copied.zero_()
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    assert torch.from_dlpack(x, device="cpu").tolist() == [0, 1, 2, 3, 4, 5]
    assert torch.from_dlpack(torch.empty(0, device="spyre")).shape == (0,)


def test_a_dlpack_tensor_is_an_ordinary_one():
    x = torch.arange(12.0).reshape(3, 4).to("spyre")
    y = torch.from_dlpack(x[1:])
    assert torch.equal(copy.deepcopy(y).cpu(), x.cpu()[1:])
    assert torch.equal(torch.load(saved(y)).cpu(), x.cpu()[1:])
    assert torch.equal(y.clone().cpu(), x.cpu()[1:])
    assert y.t()[2].tolist() == [6, 10]
    with pytest.raises(RuntimeError, match="out of bounds|of a storage of 8 elements"):
        y.as_strided((9,), (1,))


def test_dlpack_to_other_devices_is_refused():
    x = torch.ones(2, device="spyre")
    with pytest.raises(BufferError, match="is laid out in sticks.* no other device can read its memory.*tensor.cpu()"):
        x.__dlpack__(dl_device=(torch.utils.dlpack.DLDeviceType.kDLCPU, 0))
    with pytest.raises((BufferError, RuntimeError), match="nsupported device"):
        numpy.from_dlpack(x)
    with pytest.raises(BufferError, match="require gradient"):
        x.requires_grad_().__dlpack__()


def test_dlpack_of_a_second_layout_of_some_memory_is_refused():
    x = torch.zeros(2, 64, dtype=torch.float16, device="spyre")
    alias = _C.as_strided_with_layout(x, [128], [1], 0, SpyreTensorLayout([2, 64], [64, 1], DataFormats.SEN169_FP16))
    with pytest.raises(BufferError, match="by a layout of its own: export tensor.clone()"):
        torch.from_dlpack(alias)
    assert torch.from_dlpack(alias.clone()).shape == (128,)


def test_sending_to_another_process_is_refused():
    with pytest.raises(RuntimeError, match="memory of a card belongs to one process and cannot be shared"):
        ForkingPickler.dumps(torch.ones(2, device="spyre"))
    assert torch.ones(2).share_memory_().is_shared()


def test_in_timing_mode_everything_runs_on_zeros(python):
    done = python(
        """
        import copy, io, torch
        x = torch.ones(4, 70, dtype=torch.float16).to("spyre")
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        y = torch.from_dlpack(copy.deepcopy(torch.load(file)))
        print(y.shape, y.cpu().sum().item())
        """,
        SPYRE_CARD="timing",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch.Size([4, 70]) 0.0\n" and "computes no values" in done.stderr
