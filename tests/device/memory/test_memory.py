"""Memory: what is allocated, cached, free, pinned, and when it may be used again."""

import gc

import pytest
import torch
from torch.spyre import Stream, memory


@pytest.fixture(autouse=True)
def clean_memory():
    gc.collect()
    torch.spyre.synchronize()
    memory.empty_cache()
    memory.reset_peak_memory_stats()
    memory.reset_accumulated_memory_stats()


def test_two_halves_own_128_bytes():
    before = memory.memory_allocated()
    x = torch.ones(2, dtype=torch.float16, device="spyre")
    assert memory.memory_allocated() - before == x.untyped_storage().nbytes() == 128


@pytest.mark.parametrize("numel", [1, 63, 64, 65, 1000, 123457])
def test_allocations_are_multiples_of_128(numel):
    before = memory.memory_allocated()
    x = torch.empty(numel, dtype=torch.float16, device="spyre")
    assert memory.memory_allocated() - before == -(-numel // 64) * 128
    assert x.data_ptr() % 128 == 0


def test_views_allocate_nothing():
    x = torch.ones(4, 8, device="spyre")
    before = memory.memory_allocated()
    views = [x[1:], x.t(), x.view(8, 4), x.expand(2, 4, 8)]
    assert memory.memory_allocated() == before and len(views) == 4


def test_freed_memory_is_free():
    before = memory.memory_allocated()
    x = torch.empty(1 << 20, device="spyre")
    assert memory.memory_allocated() == before + (4 << 20)
    del x
    assert memory.memory_allocated() == before


def test_peak_and_reset():
    before = memory.memory_allocated()
    x = torch.empty(1 << 20, device="spyre")
    del x
    assert memory.max_memory_allocated() == before + (4 << 20)
    memory.reset_peak_memory_stats()
    assert memory.max_memory_allocated() == before


def test_cache_keeps_chunks_until_emptied():
    before = memory.memory_reserved()
    x = torch.empty(30 << 20, dtype=torch.int8, device="spyre")
    del x
    assert memory.memory_reserved() == before + (30 << 20)
    memory.empty_cache()
    assert memory.memory_reserved() == before
    assert memory.max_memory_reserved() == before + (30 << 20)


def test_free_and_total():
    free, total = memory.mem_get_info()
    x = torch.empty(1 << 20, dtype=torch.int8, device="spyre")
    assert memory.mem_get_info() == (free - x.nbytes, total)
    assert total == torch.spyre.get_device_properties().total_memory


def test_stats_count():
    x = torch.empty(2**26, device="spyre")  # more than is free in memory that other tests hold
    stats = memory.memory_stats()
    assert stats["allocation.all.allocated"] == 1
    assert stats["allocated_bytes.all.allocated"] == 2**28
    assert stats["num_device_alloc"] == stats["segment.all.allocated"] == 1
    assert stats["reserved_bytes.all.current"] >= stats["allocated_bytes.all.current"]
    del x
    assert memory.memory_stats()["allocation.all.freed"] == 1
    memory.reset_accumulated_memory_stats()
    assert memory.memory_stats()["allocation.all.freed"] == 0


def test_stats_before_the_runtime_starts(program):
    printed = program("import torch; print(torch.spyre.memory_allocated(), dict(torch.spyre.memory_stats()))")
    assert printed == "0 {}\n"


@pytest.mark.parametrize("ask", [memory.memory_allocated, memory.memory_stats, memory.mem_get_info])
def test_card_that_is_not_there(ask):
    with pytest.raises(RuntimeError, match="invalid device index 4"):
        ask(4)


def test_memory_in_use_by_a_stream_is_not_reused(held):
    stream, x = Stream(), torch.full((1 << 20,), 3.0, device="spyre")
    target = torch.zeros(1 << 20, pin_memory=True)
    torch.spyre.synchronize()
    address = x.data_ptr()
    with stream, held(stream):
        target.copy_(x, non_blocking=True)
        del x
        other = torch.zeros(1 << 20, device="spyre")
        assert other.data_ptr() != address
    stream.synchronize()
    assert torch.equal(target, torch.full((1 << 20,), 3.0))


def test_record_stream_keeps_memory(held):
    stream, x = Stream(), torch.zeros(1 << 20, device="spyre")
    torch.spyre.synchronize()
    address = x.data_ptr()
    with held(stream):
        x.record_stream(stream)
        del x
        assert torch.empty(1 << 20, device="spyre").data_ptr() != address
    stream.synchronize()
    assert torch.empty(1 << 20, device="spyre").data_ptr() == address


def test_without_record_stream_memory_is_reused_at_once(held):
    stream, x = Stream(), torch.empty(1 << 20, device="spyre")
    address = x.data_ptr()
    with held(stream):
        del x
        assert torch.empty(1 << 20, device="spyre").data_ptr() == address


def test_record_stream_of_another_device():
    with pytest.raises(RuntimeError, match="is not a stream of a spyre card"):
        torch.ones(1, device="spyre").record_stream(torch.Stream(stream_id=0, device_index=0, device_type=0))


def test_out_of_memory_says_how_much_and_leaves_the_card_usable(program):
    printed = program(
        """
        import torch
        x = torch.empty(3 << 20, dtype=torch.int8, device="spyre")
        try:
            torch.empty(2 << 20, dtype=torch.int8, device="spyre")
        except torch.OutOfMemoryError as error:
            print(error)
        print(torch.spyre.memory_stats()["num_ooms"])
        del x
        print(torch.zeros(2 << 20, dtype=torch.int8, device="spyre").sum().item())
        """,
        SPYRE_MEMORY_GB=str(4 / 1024),
        TORCH_SPYRE_FALLBACK_WARN="0",
    ).splitlines()
    assert printed[0].startswith(
        "card 0 is out of memory: asked for 2.00 MiB (2097152 bytes), free 1.00 MiB (1048576 bytes)"
    )
    assert printed[1:] == ["1", "0"]


def test_cached_memory_is_given_back_before_giving_up(program):
    printed = program(
        """
        import torch
        for size in (1 << 10, 3 << 20, 2 << 20, 4 << 20):
            torch.empty(size, dtype=torch.int8, device="spyre")
        print(torch.spyre.memory_stats()["num_ooms"], torch.spyre.memory_stats()["num_alloc_retries"] > 0)
        """,
        SPYRE_MEMORY_GB=str(4 / 1024),
    )
    assert printed == "0 True\n"


# A callback needs the GIL that the thread waiting for memory had: it must have let go of it.
@pytest.mark.parametrize(
    "allocate",
    [
        "torch.empty(3 << 20, dtype=torch.int8, device='spyre')",
        "torch_spyre._C.empty_with_layout([3 << 20], torch.int8, layout)",
    ],
)
def test_allocation_waits_for_memory_that_a_stream_still_uses(program, allocate):
    printed = program(
        f"""
        import threading, time, torch, torch_spyre
        layout = torch.spyre.SpyreTensorLayout([3 << 20], torch.int8)
        stream = torch.spyre.Stream()
        x = torch.zeros(3 << 20, dtype=torch.int8, device="spyre")
        torch.spyre.synchronize()
        stream.add_callback(lambda: time.sleep(0.3))
        stream.add_callback(lambda: print("work", flush=True))
        x.record_stream(stream)
        del x
        {allocate}
        print("memory")
        """,
        SPYRE_MEMORY_GB=str(4 / 1024),
    )
    assert printed == "work\nmemory\n"


def test_ctrl_c_interrupts_an_allocation_that_waits(program):
    printed = program(
        """
        import os, signal, threading, torch
        gate, stream = threading.Event(), torch.spyre.Stream()
        x = torch.zeros(3 << 20, dtype=torch.int8, device="spyre")
        torch.spyre.synchronize()
        stream.add_callback(gate.wait)
        x.record_stream(stream)
        del x
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            torch.empty(3 << 20, dtype=torch.int8, device="spyre")
        except KeyboardInterrupt:
            print("interrupted")
        gate.set()
        torch.spyre.synchronize()
        print(torch.empty(3 << 20, dtype=torch.int8, device="spyre").shape)
        """,
        SPYRE_MEMORY_GB=str(4 / 1024),
    )
    assert printed == "interrupted\ntorch.Size([3145728])\n"


def test_pinned_memory():
    x = torch.arange(10.0)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and not x.is_pinned()
    assert torch.equal(pinned, x) and pinned.device.type == "cpu"
    assert pinned[3:].is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()


def test_device_memory_cannot_be_pinned():
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned|only host memory can be pinned"):
        torch.ones(2, device="spyre").pin_memory()
    with pytest.raises(RuntimeError, match="only host memory can be pinned|Only dense CPU tensors can be pinned"):
        torch.empty(2, device="spyre", pin_memory=True)


@pytest.fixture
def threads_stay():
    """A DataLoader's pinning thread sets 1 thread for all that start later, and compiled code guards on the number."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_data_loader_pins(threads_stay):
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=1, pin_memory=True)
    batches = list(loader)
    assert all(batch.is_pinned() for batch in batches)
    assert [batch.to("spyre", non_blocking=True).cpu().sum().item() for batch in batches] == [6, 22]


def test_pinned_memory_runs_out_with_a_clear_error():
    with pytest.raises(torch.OutOfMemoryError, match="pinned host memory is out of memory: asked for 4.00 TiB"):
        torch.empty(1 << 40, pin_memory=True)


def test_runtime_is_freed_only_without_tensors(program):
    printed = program("""
        import torch, torch_spyre
        x = torch.ones(2, device="spyre")
        try:
            torch_spyre._C.free_runtime()
        except RuntimeError as error:
            print(error)
        del x
        torch_spyre._C.free_runtime()
        print(torch.spyre.is_initialized())
        print(torch.ones(2, device="spyre").tolist())
    """)
    assert printed.splitlines() == [
        "the runtime cannot be freed while tensors hold 128 bytes of card 0",
        "False",
        "[1.0, 1.0]",
    ]
