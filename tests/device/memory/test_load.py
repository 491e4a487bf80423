"""Load: nothing is lost, nothing grows, memory comes back."""

import gc
import random
import threading

import pytest
import torch
from torch.spyre import Stream, memory

THREADS, STREAMS, COPIES = 8, 32, 20_000


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_async_copies_from_many_threads_over_many_streams():
    """Each copy goes to the card and back on its stream; every word that arrives is summed and compared."""
    gc.collect()
    torch.spyre.synchronize()
    before = memory.memory_allocated()
    streams = [Stream() for _ in range(STREAMS)]
    arrived, expected, errors = [0] * THREADS, [0] * THREADS, []
    round_trips = COPIES // 2 // THREADS

    def work(thread: int) -> None:
        chance = random.Random(thread)
        flying = []

        def land() -> None:
            for stream in streams[thread::THREADS]:
                stream.synchronize()
            arrived[thread] += sum(int(back.sum()) for back in flying)
            flying.clear()

        for i in range(round_trips):
            host = torch.empty(chance.randrange(1, 500), dtype=torch.int32, pin_memory=True)
            host.copy_(torch.arange(i, i + host.numel(), dtype=torch.int32))
            expected[thread] += int(host.sum())
            back = torch.empty_like(host, pin_memory=True)
            with chance.choice(streams[thread::THREADS]):
                back.copy_(host.to("spyre", non_blocking=True), non_blocking=True)
            flying.append(back)
            if len(flying) == 100:
                land()
        land()

    def checked(thread: int) -> None:
        try:
            work(thread)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=checked, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert arrived == expected
    torch.spyre.synchronize()
    assert memory.memory_allocated() == before


def test_allocations_of_random_sizes_do_not_grow():
    gc.collect()
    memory.empty_cache()
    before, chance, live = memory.memory_allocated(), random.Random(0), []

    def cycles(count: int) -> int:
        for _ in range(count):
            live.append(torch.empty(int(2 ** chance.uniform(0, 22)), dtype=torch.int8, device="spyre"))
            if len(live) > 32:
                live.pop(chance.randrange(len(live)))
        return memory.memory_reserved()

    warm = cycles(2000)
    assert cycles(8000) <= 2 * warm
    live.clear()
    assert memory.memory_allocated() == before
    memory.empty_cache()
    assert memory.memory_stats()["allocation.all.current"] * 2 << 20 >= memory.memory_reserved()


def test_pinned_allocations_do_not_grow():
    chance = random.Random(1)

    def cycles(count: int) -> int:
        for _ in range(count):
            torch.empty(int(2 ** chance.uniform(0, 20)), dtype=torch.int8, pin_memory=True)[:1].zero_()
        return resident_bytes()

    warm = cycles(1000)
    assert cycles(4000) - warm < 16 << 20


def test_the_host_does_not_grow_with_work():
    x, host = torch.zeros(1000, device="spyre"), torch.zeros(1000).pin_memory()
    streams = [Stream() for _ in range(8)]

    def cycles(count: int) -> int:
        for i in range(count):
            with streams[i % 8]:
                x.copy_(host, non_blocking=True)
                x.fill_(i)
                streams[i % 8].record_event().wait(streams[(i + 1) % 8])
        torch.spyre.synchronize()
        return resident_bytes()

    warm = cycles(1000)
    assert cycles(5000) - warm < 16 << 20


def test_a_thousand_failures_leave_the_other_streams_working():
    failing, other, x = Stream(), Stream(), torch.zeros(100, device="spyre")
    torch.spyre.synchronize()
    for i in range(1000):
        failing.add_callback(lambda: 1 / 0)
        with other:
            x.fill_(i)
            if i % 100 == 0:
                assert x.cpu().unique().tolist() == [i]
    with pytest.raises(ZeroDivisionError):
        failing.synchronize()
    failing.synchronize()


def test_a_long_chain_of_events_over_all_streams():
    x = torch.zeros(64, dtype=torch.int32, device="spyre")
    torch.spyre.synchronize()
    streams = [Stream() for _ in range(STREAMS)]
    for i in range(2000):
        here, there = streams[i % STREAMS], streams[(i + 1) % STREAMS]
        with here:
            x.fill_(i)
        there.wait_stream(here)
    with streams[2000 % STREAMS]:
        assert x.cpu().unique().tolist() == [1999]


@pytest.mark.slow
def test_large_copies_on_all_streams():
    hosts = [torch.full((1 << 20,), float(i)).pin_memory() for i in range(STREAMS)]
    for _ in range(5):
        streams = [Stream() for _ in range(STREAMS)]
        backs = []
        for host, stream in zip(hosts, streams, strict=True):
            with stream:
                backs.append(
                    torch.empty_like(host, pin_memory=True).copy_(
                        host.to("spyre", non_blocking=True), non_blocking=True
                    )
                )
        torch.spyre.synchronize()
        assert all(torch.equal(back, host) for back, host in zip(backs, hosts, strict=True))
