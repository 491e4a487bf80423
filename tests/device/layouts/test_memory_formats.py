"""Memory formats: hints that order strides, and change nothing else."""

import io

import pytest
import torch
from torch import nn

LAST, LAST_3D = torch.channels_last, torch.channels_last_3d
IMAGE = torch.randn(2, 3, 6, 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.empty(2, 3, 6, 5, device=device, memory_format=LAST).fill_(1),
        lambda device: IMAGE.to(device, memory_format=LAST),
        lambda device: IMAGE.to(device).to(memory_format=LAST),
        lambda device: IMAGE.to(device).contiguous(memory_format=LAST),
        lambda device: IMAGE.to(device).clone(memory_format=LAST),
        lambda device: torch.zeros_like(IMAGE.to(device), memory_format=LAST),
        lambda device: IMAGE.to(device).to(memory_format=LAST).clone(),
        lambda device: IMAGE.to(device).to(memory_format=LAST) * 2,
        lambda device: torch.empty(0, device=device).resize_(2, 3, 6, 5, memory_format=LAST).fill_(1),
        lambda device: IMAGE[None].to(device).to(memory_format=LAST_3D),
        lambda device: IMAGE.to(device).to(memory_format=LAST).contiguous(),
    ],
)
def test_strides_and_values_are_the_hosts(make):
    got, want = make("spyre"), make("cpu")
    assert got.stride() == want.stride()
    for form in (torch.contiguous_format, LAST if want.dim() == 4 else LAST_3D):
        assert got.is_contiguous(memory_format=form) == want.is_contiguous(memory_format=form)
    assert torch.equal(got.cpu(), want)


def test_the_rank_is_checked():
    with pytest.raises(RuntimeError, match="required rank 4 tensor to use channels_last format"):
        torch.zeros(2, 3, device="spyre").to(memory_format=LAST)
    with pytest.raises(RuntimeError, match="required rank 5 tensor to use channels_last_3d format"):
        torch.empty(2, 3, device="spyre", memory_format=LAST_3D)


def test_saved_and_loaded():
    file = io.BytesIO()
    torch.save(IMAGE.to("spyre", memory_format=LAST), file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded.is_contiguous(memory_format=LAST)
    assert torch.equal(loaded.cpu(), IMAGE)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_convolutions(compiled):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    card = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    card.load_state_dict(model.state_dict())
    card.to("spyre").to(memory_format=LAST)
    assert card[0].weight.is_contiguous(memory_format=LAST)
    with torch.spyre.fallback("error"):
        got = (torch.compile(card) if compiled else card)(IMAGE.to("spyre", memory_format=LAST))
        got.sum().backward()
    want = model(IMAGE)
    want.sum().backward()
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(card[0].weight.grad.cpu(), model[0].weight.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "move",
    [
        lambda module: module.to("spyre", memory_format=LAST),
        lambda module: module.to(memory_format=LAST).to("spyre"),
        lambda module: module.to("spyre").to(memory_format=LAST),
    ],
)
def test_modules_are_moved_with_their_strides(move):
    moved = move(nn.Conv2d(3, 8, 3))
    assert moved.weight.device.type == "spyre"
    assert moved.weight.stride() == (27, 1, 9, 3)
