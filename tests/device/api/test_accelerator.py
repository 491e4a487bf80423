"""torch.accelerator: PyTorch's device-agnostic names all reach this device."""

import pytest
import torch

from tests.dtypes import STORED


def test_every_name_was_thought_of():
    """A new name in a new PyTorch shows up here."""
    known = [
        "Graph",
        "current_accelerator",
        "current_device_idx",
        "current_device_index",
        "get_device_capability",
        "current_stream",
        "device_count",
        "device_index",
        "empty_cache",
        "empty_host_cache",
        "get_memory_info",
        "is_available",
        "max_memory_allocated",
        "max_memory_reserved",
        "memory_allocated",
        "memory_reserved",
        "memory_stats",
        "reset_accumulated_memory_stats",
        "reset_peak_memory_stats",
        "set_device_idx",
        "set_device_index",
        "set_stream",
        "synchronize",
    ]
    assert sorted(torch.accelerator.__all__) == sorted(known)


def test_the_accelerator_is_spyre():
    assert torch.accelerator.current_accelerator() == torch.device("spyre")
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("spyre")
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1


def test_device_index():
    torch.accelerator.set_device_index(0)
    torch.accelerator.set_device_index(-1)
    assert torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(0), torch.accelerator.device_index(None):
        assert torch.accelerator.current_device_index() == 0


@pytest.mark.parametrize(
    "choose", [torch.accelerator.set_device_index, lambda i: torch.accelerator.device_index(i).__enter__()]
)
def test_device_index_that_is_not_there(choose):
    with pytest.raises(RuntimeError, match="invalid device index 2: this process sees 1 spyre card"):
        choose(2)


def test_deprecated_names():
    with pytest.warns(FutureWarning):
        torch.accelerator.set_device_idx(0)
    with pytest.warns(FutureWarning):
        assert torch.accelerator.current_device_idx() == 0


def test_capability_is_the_dtypes_that_can_be_made():
    supported = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert supported == set(STORED)
    with pytest.raises(RuntimeError, match="invalid device index 7"):
        torch.accelerator.get_device_capability("spyre:7")
    for dtype in supported:
        assert torch.empty(1, dtype=dtype, device="spyre").dtype == dtype


def test_streams():
    stream = torch.Stream()
    assert stream.device.type == "spyre"
    torch.accelerator.set_stream(stream)
    assert torch.accelerator.current_stream() == stream == torch.spyre.current_stream()


def test_stream_context():
    with torch.Stream(priority=-1) as stream:
        assert torch.accelerator.current_stream("spyre:0") == stream
    assert torch.accelerator.current_stream().stream_id == 0


def test_stream_native_handle_tells_streams_apart():
    first, second = torch.Stream(), torch.Stream()
    assert first.native_handle != second.native_handle
    assert (
        first.native_handle
        == torch.Stream(stream_id=first.stream_id, device_index=0, device_type=first.device_type).native_handle
    )


def test_events():
    start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
    start.record()
    torch.zeros(1 << 20, device="spyre")
    end.record()
    torch.accelerator.synchronize()
    assert start.query() and end.query()
    assert start.elapsed_time(end) > 0


def test_synchronize_sees_work_that_came_before_any_tensor(program):
    printed = program("""
        import time, torch
        torch.spyre.Stream().add_callback(lambda: (time.sleep(0.3), print("work", flush=True)))
        torch.accelerator.synchronize()
        print("waited")
    """)
    assert printed == "work\nwaited\n"


def test_memory():
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    x = torch.empty(1000, device="spyre")
    assert torch.accelerator.memory_allocated() == before + 4096
    assert torch.accelerator.max_memory_allocated() == before + 4096
    assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated()
    assert torch.accelerator.max_memory_reserved() >= torch.accelerator.memory_reserved()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.allocated"] == x.untyped_storage().nbytes() == 4096
    free, total = torch.accelerator.get_memory_info()
    assert total - free == torch.accelerator.memory_allocated()


def test_empty_host_cache(program):
    printed = program("""
        import torch
        torch.accelerator.empty_host_cache()
        print(torch.spyre.is_initialized())
        x = torch.ones(100).pin_memory()
        torch.accelerator.empty_host_cache()
        print(x.sum().item(), x.is_pinned())
    """)
    assert printed == "False\n100.0 True\n"


def test_graph_is_refused():
    with pytest.raises(RuntimeError, match="Graph is not supported on device type: spyre"):
        torch.accelerator.Graph()


def test_seeds():
    torch.accelerator.manual_seed(17)
    assert torch.spyre.initial_seed() == 17
    torch.accelerator.manual_seed_all(18)
    assert torch.spyre.initial_seed() == 18


def test_device_module():
    assert torch.get_device_module("spyre") is torch.get_device_module() is torch.spyre


def test_default_device():
    with torch.device("spyre"):
        assert torch.ones(2).device == torch.device("spyre:0")
