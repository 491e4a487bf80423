"""Streams: FIFOs of work, by id and priority, with callbacks, errors that stick until they are seen, and Ctrl-C."""

import threading

import pytest
import torch
from torch.spyre import Stream, current_stream, default_stream, set_stream, stream


def fail():
    raise LookupError("the callback failed")


def test_default_stream_is_current():
    assert default_stream().stream_id == current_stream().stream_id == 0
    assert default_stream() == current_stream()


def test_low_priority_pool_is_round_robin():
    ids = [Stream().stream_id for _ in range(33)]
    assert sorted(ids[:32]) == list(range(1, 33)) and ids[32] == ids[0]


@pytest.mark.parametrize("priority", [-1, -5, 1])
def test_any_other_priority_asks_for_the_high_pool(priority):
    ids = [Stream(priority=priority).stream_id for _ in range(33)]
    assert sorted(ids[:32]) == list(range(33, 65)) and ids[32] == ids[0]


def test_priority_answers_0_or_minus_1():
    assert [Stream().priority, Stream(priority=7).priority, default_stream().priority] == [0, -1, 0]


def test_device_is_a_method():
    assert Stream().device() == torch.device("spyre:0")


def test_stream_is_a_torch_stream():
    mine = Stream()
    assert isinstance(mine, torch.Stream)
    assert mine == torch.Stream(stream_id=mine.stream_id, device_index=0, device_type=mine.device_type)
    assert mine != Stream()


def test_context_manager_makes_it_current_and_restores():
    outer, inner = Stream(), Stream()
    with outer:
        with inner:
            assert current_stream() == inner
        assert current_stream() == outer
    assert current_stream() == default_stream()


def test_stream_function_and_none():
    mine = Stream()
    with stream(mine), stream(None):
        assert current_stream() == mine


def test_set_stream():
    mine = Stream()
    set_stream(mine)
    set_stream(None)
    assert current_stream() == mine


def test_current_stream_is_per_thread():
    seen = []
    with Stream():
        thread = threading.Thread(target=lambda: seen.append(current_stream().stream_id))
        thread.start()
        thread.join()
    assert seen == [0]


def test_repr():
    assert repr(default_stream()) == "<torch.spyre.Stream device=spyre:0 id=0 priority=0>"


def test_stream_of_a_card_that_is_not_there():
    for make in (lambda: Stream(3), lambda: torch.Stream(device="spyre:3"), lambda: current_stream("spyre:3")):
        with pytest.raises(RuntimeError, match="invalid device index 3"):
            make()


def test_stream_that_does_not_exist():
    with pytest.raises(RuntimeError, match="stream 65 does not exist: a card has streams 0 to 64"):
        Stream(stream_id=65, device_index=0, device_type=20)
    stray = torch.Stream(stream_id=65, device_index=0, device_type=20)
    for use in (set_stream, lambda s: s.synchronize(), torch.ones(1, device="spyre").record_stream):
        with pytest.raises(RuntimeError, match="stream 65 does not exist"):
            use(stray)


def test_query_and_synchronize(held):
    mine = Stream()
    with held(mine):
        assert not mine.query()
        assert default_stream().query()
    mine.synchronize()
    assert mine.query()


def test_work_on_one_stream_is_in_order():
    mine, order = Stream(), []
    for i in range(100):
        mine.add_callback(lambda i=i: order.append(i))
    mine.synchronize()
    assert order == list(range(100))


def test_wait_stream_orders_two_streams(held):
    first, second, order = Stream(), Stream(), []
    with held(first):
        first.add_callback(lambda: order.append("first"))
        second.wait_stream(first)
        second.add_callback(lambda: order.append("second"))
        assert order == []
    second.synchronize()
    assert order == ["first", "second"]


def test_synchronize_waits_for_every_stream():
    done = []
    for _ in range(5):
        Stream().add_callback(lambda: done.append(1))
    torch.spyre.synchronize()
    assert len(done) == 5


def test_copy_from_pinned_memory_returns_before_it_is_done(held):
    mine, x = Stream(), torch.arange(1000.0).pin_memory()
    with mine, held(mine):
        y = x.to("spyre", non_blocking=True)
        assert not mine.query()
    mine.synchronize()
    assert torch.equal(y.cpu(), x)


def test_copy_to_pinned_memory_returns_before_it_is_done(held):
    mine, x, y = Stream(), torch.arange(1000.0, device="spyre"), torch.zeros(1000, pin_memory=True)
    with mine, held(mine):
        y.copy_(x, non_blocking=True)
        assert not mine.query() and not y.any()
    mine.synchronize()
    assert torch.equal(y, torch.arange(1000.0))


def test_pinned_memory_lives_until_the_copy_is_done(held):
    mine = Stream()
    x = torch.full((1000,), 7.0).pin_memory()
    with mine, held(mine):
        y = x.to("spyre", non_blocking=True)
        del x
        assert torch.full((1000,), 1.0).pin_memory().sum() == 1000  # would take the place of x
    mine.synchronize()
    assert torch.equal(y.cpu(), torch.full((1000,), 7.0))


def test_callback_error_is_raised_at_the_next_wait_and_cleared():
    mine = Stream()
    mine.add_callback(fail)
    with pytest.raises(LookupError, match="the callback failed"):
        mine.synchronize()
    mine.synchronize()


def test_work_behind_an_error_is_not_done():
    mine, x = Stream(), torch.zeros(4, device="spyre")
    mine.add_callback(fail)
    with mine:
        x.fill_(1)
    with pytest.raises(LookupError):
        torch.spyre.synchronize()
    assert not x.cpu().any()
    with mine:
        x.fill_(2)
        assert x.cpu().tolist() == [2, 2, 2, 2]


def test_an_error_leaves_other_streams_working():
    failing, other = Stream(), Stream()
    failing.add_callback(fail)
    with other:
        x = torch.full((3,), 5.0, device="spyre")
        assert x.cpu().tolist() == [5, 5, 5]
    with pytest.raises(LookupError):
        failing.synchronize()


def test_a_blocking_copy_raises_what_went_wrong_before_it():
    mine = Stream()
    mine.add_callback(fail)
    with mine, pytest.raises(LookupError):
        torch.ones(3).to("spyre")


def test_the_first_of_several_errors_is_raised():
    mine = Stream()
    mine.add_callback(fail)
    mine.add_callback(lambda: 1 / 0)
    with pytest.raises(LookupError):
        mine.synchronize()
    mine.synchronize()


def test_values_that_do_not_fit_are_found_while_the_stream_runs():
    x = torch.full((4,), 2**30, device="spyre")
    x += x
    with pytest.raises(ValueError, match="a result of add does not fit the 32 bits"):
        torch.spyre.synchronize()


def test_modelled_time_follows_the_work():
    mine = Stream()
    before = mine.modelled_time()
    with mine:
        torch.zeros(4096, device="spyre")
    once = mine.modelled_time() - before
    with mine:
        torch.zeros(4096, device="spyre")
    assert once > 0
    assert mine.modelled_time() - before == pytest.approx(2 * once)


INTERRUPTED = """
import os, signal, threading, torch
gate = threading.Event()
stream = torch.spyre.Stream()
stream.add_callback(gate.wait)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted")
gate.set()
torch.spyre.synchronize()
print(torch.ones(2, device="spyre").tolist())
"""
WAITS = {
    "stream": "stream.synchronize()",
    "device": "torch.spyre.synchronize()",
    "event": "stream.record_event().synchronize()",
    "copy": "with stream: torch.ones(1 << 20).to('spyre')",
    "read": "with stream: torch.ones(2, device='spyre').cpu()",
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_interrupts_a_wait(program, wait):
    assert program(INTERRUPTED.format(wait=WAITS[wait])) == "interrupted\n[1.0, 1.0]\n"


def test_an_interrupted_copy_does_not_happen_later(program):
    # Its host memory may be gone by then.
    copy = "with stream: x.copy_(torch.ones(4))"
    check = 'x = torch.zeros(4, device="spyre")\n' + INTERRUPTED.format(wait=copy) + "print(x.tolist())"
    assert program("import torch\n" + check) == "interrupted\n[1.0, 1.0]\n[0.0, 0.0, 0.0, 0.0]\n"


def test_ctrl_c_reaches_a_callback_that_the_wait_carries_out(program):
    # With the pool busy elsewhere the waiting thread runs the callback itself.
    printed = program(
        """
        import os, signal, threading, time, torch
        gate, busy, stream = threading.Event(), torch.spyre.Stream(), torch.spyre.Stream()
        busy.add_callback(gate.wait)
        stream.add_callback(lambda: time.sleep(3))
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            stream.synchronize()
        except KeyboardInterrupt:
            print("interrupted")
        gate.set()
        """,
        SPYRE_THREADS="1",
    )
    assert printed == "interrupted\n"


def test_queued_work_ends_before_the_interpreter_does(program):
    printed = program("""
        import time, torch
        def late():
            time.sleep(0.3)
            print("done", flush=True)
        torch.spyre.Stream().add_callback(late)
    """)
    assert printed == "done\n"


def test_an_error_that_nobody_waited_for_is_told_at_exit(python):
    result = python("""
        import torch
        torch.spyre.Stream().add_callback(lambda: 1 / 0)
    """)
    assert result.returncode == 0
    assert result.stderr == "work on spyre:0 failed after the last wait for it: division by zero\n"


def test_callback_errors_in_timing_mode(program):
    printed = program(
        """
        import torch
        stream = torch.spyre.Stream()
        stream.add_callback(lambda: 1 / 0)
        try:
            stream.synchronize()
        except ZeroDivisionError:
            stream.synchronize()
            print("raised once")
        """,
        SPYRE_CARD="timing",
    )
    assert printed == "raised once\n"
