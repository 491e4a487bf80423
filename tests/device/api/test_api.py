"""Names of ``torch.cuda`` that programs for any device expect."""

import inspect

import pytest
import torch

from torch_spyre import _C


@pytest.mark.parametrize(
    "name",
    ["memory_summary", "memory_snapshot", "get_device_capability", "is_bf16_supported", "can_device_access_peer"]
    + ["memory_stats_as_nested_dict", "is_tf32_supported", "get_arch_list", "is_current_stream_capturing"]
    + ["device_memory_used"],
)
def test_parameters_are_those_of_cuda(name):
    ours, cudas = (inspect.signature(getattr(module, name)).parameters for module in (torch.spyre, torch.cuda))
    assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in cudas.values()]
    assert name in torch.spyre.__all__


def test_capabilities():
    properties = torch.spyre.get_device_properties()
    assert torch.spyre.get_device_capability() == torch.spyre.get_device_capability("spyre:0") == (1, 0)
    assert torch.spyre.get_device_capability(0) == (properties.major, properties.minor)
    with pytest.raises(RuntimeError, match="invalid device index 7"):
        torch.spyre.get_device_capability(7)
    assert torch.spyre.is_bf16_supported() is True
    assert torch.spyre.is_bf16_supported(including_emulation=False) is False
    assert torch.spyre.get_arch_list() == []
    assert not torch.spyre.is_tf32_supported() and not torch.spyre.is_current_stream_capturing()
    assert not torch.spyre.can_device_access_peer(0, 0)
    assert torch.spyre.default_generators == (torch.spyre.random.default_generator(),)


def test_a_summary_has_the_numbers_of_the_statistics():
    kept = torch.empty(3 << 20, dtype=torch.int8, device="spyre")
    text = torch.spyre.memory_summary()
    used = torch.spyre.memory_allocated() // 1024
    row = next(line for line in text.splitlines() if "Allocated memory" in line)
    assert f" {used} KiB " in row
    assert len({len(line) for line in text.splitlines()}) == 1 and "device ID 0" in text
    assert len(torch.spyre.memory_summary(0, abbreviated=True)) <= len(text)
    del kept


def test_a_snapshot_shows_every_block():
    torch.spyre.synchronize()
    torch.spyre.empty_cache()
    large, small = torch.empty(3 << 20, dtype=torch.int8, device="spyre"), torch.empty(2, device="spyre")
    segments = torch.spyre.memory_snapshot()
    stats = torch.spyre.memory_stats()
    assert sum(segment["total_size"] for segment in segments) == torch.spyre.memory_reserved()
    assert sum(segment["allocated_size"] for segment in segments) == torch.spyre.memory_allocated()
    assert len(segments) == stats["segment.all.current"]
    for segment in segments:
        blocks = segment["blocks"]
        assert sum(block["size"] for block in blocks) == segment["total_size"]
        assert blocks[0]["address"] == segment["address"]
        assert {block["state"] for block in blocks} <= {"active_allocated", "active_pending_free", "inactive"}
    sizes = [b["size"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated"]
    assert 3 << 20 in sizes and 128 in sizes
    assert {s["segment_type"] for s in segments} == {"small", "large"}
    del large, small


def test_a_block_that_a_stream_still_uses_is_pending(held):
    stream = torch.spyre.Stream()
    x = torch.empty(3 << 20, dtype=torch.int8, device="spyre")
    with held(stream):
        x.record_stream(stream)
        del x
        states = [(b["size"], b["state"]) for s in torch.spyre.memory_snapshot() for b in s["blocks"]]
        assert (3 << 20, "active_pending_free") in states
    stream.synchronize()


def test_nested_statistics():
    flat, nested = torch.spyre.memory_stats(), torch.spyre.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == flat["allocated_bytes.all.current"]
    assert nested["num_ooms"] == flat["num_ooms"]
    free, total = torch.spyre.mem_get_info()
    assert torch.spyre.device_memory_used() == total - free


def test_statistics_are_reset_under_the_public_names():
    x = torch.empty(1 << 20, dtype=torch.int8, device="spyre")
    del x
    torch.spyre.synchronize()
    torch.spyre._spyre_reset_peak_stats(0)
    torch.spyre._spyre_reset_accumulated_stats("spyre:0")
    assert torch.spyre.max_memory_allocated() == torch.spyre.memory_allocated()
    assert torch.spyre.memory_stats()["allocated_bytes.all.allocated"] == 0


X = torch.ones(8, 8)
OPS = {
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(-1),
    "mm": lambda x: torch.mm(x, x),
    "addmm": lambda x: torch.addmm(x, x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "_softmax": lambda x: torch.softmax(x, -1),
    "amax": lambda x: x.amax(-1),
    "cumsum": lambda x: x.cumsum(0),
    "argmax": lambda x: x.argmax(),
    "topk": lambda x: x.topk(2),
    "add": lambda x: x + 1,
    "add_": lambda x: x.add_(1),
    "mul_": lambda x: x.mul_(x),
    "linalg_inv_ex": lambda x: torch.linalg.inv(x + torch.eye(8, device=x.device)),
}


@pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning")
@pytest.mark.parametrize("compiled", [True, False], ids=["seen before", "first call"])
@pytest.mark.parametrize("name", OPS)
def test_a_profiler_sees_each_op_once(name, compiled):
    x = X.to("spyre")
    if compiled:
        OPS[name](x)
    else:
        _C.forget_kernels()
    with torch.profiler.profile() as profile:
        OPS[name](x)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts[f"aten::{name}"] == 1
    if name.endswith("_"):
        assert f"aten::{name[:-1]}" not in counts
