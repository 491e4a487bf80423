"""Tensors that only have a shape: meta tensors and fake ones."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.spyre import SpyreTensorLayout


def test_fake_factories():
    before = torch.spyre.memory_allocated()
    with FakeTensorMode():
        made = [
            torch.empty(1000, 1000, device="spyre"),
            torch.zeros(2, 3, device="spyre"),
            torch.arange(6, device="spyre"),
            torch.randn(6, device="spyre"),
            torch.empty_strided((2, 3), (1, 2), device="spyre"),
        ]
        made += [torch.empty_like(made[0]), made[1].new_ones(4), torch.zeros(2).to("spyre"), torch.ones(2).spyre()]
    assert {x.device for x in made} == {torch.device("spyre:0")}
    assert torch.spyre.memory_allocated() == before


def test_fake_ops_run_nothing():
    torch.spyre.reset_fallback_counts()
    with FakeTensorMode(), torch.spyre.fallback("error"):
        x = torch.empty(4, 5, dtype=torch.float16, device="spyre")
        y = (x @ x.t()).softmax(-1)[:, 1:]
        z = torch.cat([y, y]).sum(0)
    assert (y.shape, y.stride(), y.dtype, y.device.type) == ((4, 3), (4, 1), torch.float16, "spyre")
    assert z.shape == (3,) and torch.spyre.fallback_counts() == {}


def test_fake_of_a_real_tensor():
    real = torch.arange(12.0).reshape(3, 4).to("spyre").t()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(real)
        assert (fake.device, fake.shape, fake.stride()) == (real.device, real.shape, real.stride())
        assert fake.to("cpu").device.type == "cpu"
        assert (fake + 1).device == real.device


def test_fake_tensors_have_no_layout():
    layout = SpyreTensorLayout([4, 6], [6, 1], torch.float32, [1, 0])
    with FakeTensorMode():
        x = torch.zeros(4, 6).to(device_layout=layout)
        y = torch.empty(4, 6, device_layout=layout)
        assert x.device.type == y.device.type == "spyre"
        assert x.device_tensor_layout() is None and type(y).__name__ == "FakeTensor"


def test_a_fake_tensor_is_no_memory_on_the_card():
    from torch_spyre import _C

    with FakeTensorMode():
        fake = torch.empty(2, device="spyre")
    assert fake.device_tensor_layout() is None
    with pytest.raises(RuntimeError, match="expected a tensor with memory on the card, got a fake one"):
        _C.get_spyre_tensor_layout(fake)
    with pytest.raises(RuntimeError, match="expected a spyre tensor, got one on cpu"):
        _C.get_spyre_tensor_layout(torch.empty(2))


def test_fake_tensors_print():
    with FakeTensorMode():
        assert repr(torch.empty(2, device="spyre")) == "FakeTensor(..., device='spyre:0', size=(2,))"


def test_mixed_devices_are_refused_for_fakes_too():
    with FakeTensorMode(), pytest.raises(RuntimeError, match="two different devices|two devices"):
        torch.empty(2, device="spyre") + torch.empty(2)


def test_fake_modules():
    with FakeTensorMode(), torch.device("spyre"):
        model = torch.nn.Linear(8, 4)
        assert model(torch.empty(2, 8)).shape == (2, 4)
        assert model.weight.device.type == "spyre"


def test_meta():
    x = torch.zeros(3, 4, device="spyre").t()
    for meta in (torch.empty_like(x, device="meta"), x.to("meta")):
        assert (meta.device.type, meta.shape, meta.stride()) == ("meta", x.shape, x.stride())
    assert torch.empty_like(torch.empty(2, 3, device="meta"), device="spyre").device.type == "spyre"
    assert x.to("meta").device_tensor_layout() is None


def test_a_module_from_meta():
    model = torch.nn.Linear(3, 2, device="meta").to_empty(device="spyre")
    torch.nn.init.constant_(model.weight, 2)
    assert model.weight.detach().cpu().unique().tolist() == [2]
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        torch.nn.Linear(3, 2, device="meta").to("spyre")


@pytest.mark.filterwarnings("ignore::torch_spyre.ops.fallbacks.FallbackWarning")
def test_a_trace_keeps_the_device():
    from torch.fx.experimental.proxy_tensor import make_fx

    def body(x):
        return torch.zeros(2, device="spyre") + x.to("spyre")

    graph = make_fx(body, tracing_mode="fake")(torch.ones(2))
    assert "device(type='spyre'" in graph.code
    assert graph(torch.ones(2)).tolist() == [1, 1]
