"""Threads: each has its own current card and stream; all share the cards."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch.spyre import Stream, current_stream


def in_threads(count: int, body: Callable[[int], object]) -> list:
    """What ``body(i)`` gave in each of ``count`` threads; raises what one of them raised."""
    results, errors, start = [None] * count, [], threading.Barrier(count)

    def run(i: int) -> None:
        start.wait()
        try:
            results[i] = body(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def test_threads_start_the_runtime_once(program):
    printed = program("""
        import threading, torch
        start, sums = threading.Barrier(8), []
        def work():
            start.wait()
            sums.append(torch.full((4,), 2.0, device="spyre").tolist())
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(sums == [[2.0] * 4] * 8)
    """)
    assert printed == "True\n"


def test_threads_have_their_own_stream():
    def current_inside(i):
        stream = Stream()
        with stream:
            return current_stream() == stream and torch.full((3,), float(i), device="spyre").tolist() == [i] * 3

    assert all(in_threads(8, current_inside))
    assert current_stream().stream_id == 0


def test_round_trips_from_many_threads():
    def round_trips(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(50):
            x = torch.randn(torch.randint(1, 2000, (1,), generator=generator).item(), generator=generator)
            if not torch.equal(x.to("spyre").cpu(), x):
                return False
        return True

    assert all(in_threads(8, round_trips))


def test_threads_on_one_stream():
    stream, x = Stream(), torch.zeros(64, 100, device="spyre")
    torch.spyre.synchronize()

    def write_rows(i):
        with stream:
            for row in range(i, 64, 8):
                x[row].fill_(row)

    in_threads(8, write_rows)
    stream.synchronize()
    assert torch.equal(x.cpu(), torch.arange(64.0)[:, None].expand(64, 100))


def test_a_tensor_made_in_one_thread_is_used_and_freed_in_another():
    before = torch.spyre.memory_allocated()
    made = in_threads(4, lambda i: torch.full((1000,), float(i), device="spyre"))
    assert in_threads(4, lambda i: made.pop().cpu()[0].item() in range(4)) == [True] * 4
    assert torch.spyre.memory_allocated() == before


def test_an_error_belongs_to_its_stream():
    def one_fails(i):
        stream = Stream()
        if i == 0:
            stream.add_callback(lambda: 1 / 0)
        with stream:
            for _ in range(20):
                torch.ones(100, device="spyre").cpu()

    with pytest.raises(ZeroDivisionError):
        in_threads(4, one_fails)


def test_waiting_lets_other_python_threads_run(held):
    stream, ticks = Stream(), []
    with held(stream):
        waiter = threading.Thread(target=stream.synchronize)
        waiter.start()
        ticks.append(1)
        assert waiter.is_alive()
    waiter.join()
    assert ticks


def test_a_callback_may_use_the_card():
    stream, seen = Stream(), []
    stream.add_callback(lambda: seen.append(torch.ones(3, device="spyre").tolist()))
    stream.synchronize()
    assert seen == [[1.0, 1.0, 1.0]]


def test_callbacks_of_many_streams_and_threads_all_run():
    counts = []

    def add(i):
        for _ in range(100):
            Stream().add_callback(lambda: counts.append(i))

    in_threads(8, add)
    torch.spyre.synchronize()
    assert sorted(counts) == [i for i in range(8) for _ in range(100)]


def test_layouts_are_built_once_for_all_threads():
    for _ in range(20):
        x = torch.ones(33, 65, dtype=torch.float16, device="spyre")
        layouts = in_threads(4, lambda _, x=x: x.device_tensor_layout())
        assert len(set(layouts)) == 1


def test_kernels_behind_an_error_let_go_of_python_without_a_deadlock(program):
    # A worker drops the skipped kernel's Python function while another thread queues work under the GIL.
    printed = program("""
        import threading, torch, torch_spyre
        stream, stop = torch.spyre.Stream(), threading.Event()
        def record():
            event = torch.Event("spyre")
            while not stop.is_set():
                event.record(stream)
        thread = threading.Thread(target=record)
        thread.start()
        for i in range(200):
            step = {"type": "HostCompute", "function": lambda buffers: None}
            plan = torch_spyre._C.prepare_kernel({"name": "k", "arguments": [], "steps": [step]})
            stream.add_callback(lambda: 1 / 0)
            with stream:
                torch_spyre._C.launch_jobplan(plan, [])
            del plan
            try:
                stream.synchronize()
            except ZeroDivisionError:
                pass
        stop.set()
        thread.join()
        print("done")
    """)
    assert printed == "done\n"
