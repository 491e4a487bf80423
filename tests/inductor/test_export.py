"""Programs that are exported, traced or scripted, and what cannot be made of them."""

import io

import pytest
import torch
from torch import nn


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def check(program):
    x = torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(program(x.to("spyre")).cpu(), network()(x), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traced():
    with torch.spyre.fallback("error"):
        check(torch.jit.trace(network().to("spyre"), torch.randn(2, 8).to("spyre")))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trace_that_differs_is_still_noticed():
    with pytest.warns(torch.jit.TracerWarning, match="does not match"):
        torch.jit.trace(lambda x: x + torch.rand(2, device="spyre"), torch.ones(2, device="spyre"))
    with pytest.raises(TypeError, match=r"float64.*\.to\(torch\.float32\)"):
        torch.ones(2, device="spyre").double()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_saved_by_torch_jit():
    scripted, file = torch.jit.script(network()), io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    check(torch.jit.load(file, map_location="spyre"))
    with pytest.raises(NotImplementedError, match="torch.jit.save, which asks for that, takes modules on the CPU"):
        torch.jit.save(torch.jit.script(network().to("spyre")), io.BytesIO())


def test_exported_saved_and_compiled():
    rows = torch.export.Dim("rows")
    x = torch.randn(2, 8).to("spyre")
    exported, file = torch.export.export(network().to("spyre"), (x,), dynamic_shapes=({0: rows},)), io.BytesIO()
    check(exported.module())
    torch.export.save(exported, file)
    file.seek(0)
    check(torch.compile(torch.export.load(file).module()))


def test_aot_inductor_is_refused(tmp_path):
    exported = torch.export.export(network().to("spyre"), (torch.randn(2, 8).to("spyre"),))
    with pytest.raises(RuntimeError, match="kernels of the card are launched from Python"):
        torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "network.pt2"))
