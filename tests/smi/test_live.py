"""Programs that use a card, as another process sees them."""

import json
import os
import signal

import pytest
import torch

from torch_spyre import smi
from torch_spyre.device import telemetry
from torch_spyre.smi import processes
from torch_spyre.smi.layout import Work

WORK = """
    import sys, torch
    x = torch.ones(256, 256, dtype=torch.float16, device="spyre")
    torch.spyre.synchronize()
    print("there", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            x @ x
        torch.spyre.synchronize()
        print("done", flush=True)
"""


def do(program, count: int) -> None:
    program.stdin.write(f"{count}\n")
    program.stdin.flush()
    assert program.stdout.readline() == "done\n"


def only():
    (process,) = smi.sample().processes
    return process


def test_a_live_process_is_seen_with_growing_counters(start):
    program = start(WORK)
    assert program.stdout.readline() == "there\n"
    do(program, 1)
    before = only()
    do(program, 10)
    after = only()
    assert after.pid == program.pid and after.counters.mode == "run" and "torch.float16" in after.command
    work = after.counters.cards[0].work.since(before.counters.cards[0].work)
    assert work.kernels == 10
    assert work.busy_ps > work.matrix_ps > 0 and work.working_ns > 0
    assert work.bytes_read == 10 * 2 * 256 * 256 * 2 and work.bytes_written == 10 * 256 * 256 * 2


def test_numbers_are_those_of_the_process(start):
    program = start(
        """
        import json, sys, torch
        keep = torch.ones(1000, 1000, device="spyre")
        torch.ones(3000, 1000, device="spyre")
        start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
        torch.spyre.synchronize()
        from torch_spyre import _C, smi
        before = smi.sample().processes[0].counters.cards[0].work.busy_ps
        start.record()
        for _ in range(5):
            keep + keep
        end.record()
        torch.spyre.synchronize()
        spent = smi.sample().processes[0].counters.cards[0].work.busy_ps - before
        print(json.dumps([
            torch.spyre.memory_allocated(), torch.spyre.max_memory_allocated(), torch.spyre.memory_reserved(),
            _C.stream_time_ns(0, 0), start.elapsed_time(end), spent,
        ]), flush=True)
        sys.stdin.read()
        """
    )
    allocated, peak, reserved, time_ns, elapsed_ms, spent_ps = json.loads(program.stdout.readline())
    card = only().counters.cards[0]
    assert (card.allocated, card.peak, card.reserved) == (allocated, peak, reserved)
    assert card.streams[0].time_ps == card.work.busy_ps == round(time_ns * 1000)
    assert card.streams[0].queued == 0
    assert spent_ps == round(elapsed_ms * 1e9) > 0


def test_a_process_that_ends_disappears(start, counters):
    program = start(WORK)
    assert program.stdout.readline() == "there\n"
    assert len(os.listdir(counters)) == 1
    program.stdin.close()
    program.wait()
    assert os.listdir(counters) == []
    assert smi.sample().processes == ()


def test_the_file_of_a_killed_process_is_removed(start, counters):
    program = start(WORK)
    assert program.stdout.readline() == "there\n"
    program.send_signal(signal.SIGKILL)
    program.wait()
    assert len(os.listdir(counters)) == 1
    assert smi.sample().processes == ()
    assert os.listdir(counters) == []


def test_the_next_card_removes_the_file_of_a_killed_process(start, counters):
    first = start(WORK)
    assert first.stdout.readline() == "there\n"
    first.kill()
    first.wait()
    second = start(WORK)
    assert second.stdout.readline() == "there\n"
    assert [name.split("-")[0] for name in os.listdir(counters)] == [str(second.pid)]


def test_two_processes_share_a_card(start):
    programs = [start(WORK), start(WORK, SPYRE_CARD="strict")]
    before = smi.sample()
    for program in programs:
        assert program.stdout.readline() == "there\n"
        do(program, 3)
    rates = smi.rates(before, smi.sample())
    assert [card.id for card in rates.cards] == [0]
    assert rates.cards[0].work.kernels == sum(each.work.kernels for each in rates.processes) >= 6
    assert {each.process.counters.mode for each in rates.processes} == {"run", "strict"}
    assert 0 < rates.cards[0].busy <= 1


def test_threads_and_streams_are_counted_together(start):
    program = start(
        """
        import sys, threading, torch
        def work():
            with torch.spyre.Stream():
                x = torch.ones(64, 64, device="spyre")
                for _ in range(100):
                    x + x
        torch.ones(64, 64, device="spyre") + 1
        torch.spyre.synchronize()
        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        torch.spyre.synchronize()
        print("there", flush=True)
        sys.stdin.read()
        """
    )
    assert program.stdout.readline() == "there\n"
    card = only().counters.cards[0]
    assert card.work.kernels >= 400
    assert len(card.streams) == 5 and all(stream.queued == 0 for stream in card.streams)
    assert sum(stream.time_ps for stream in card.streams) >= card.work.busy_ps


def test_every_card_of_a_process_has_its_numbers(start):
    program = start(
        """
        import sys, torch
        x = torch.ones(1024, device="spyre:1")
        torch.spyre.synchronize(1)
        print("there", flush=True)
        sys.stdin.read()
        """,
        SPYRE_DEVICES="2,5",
        SPYRE_CARD="timing",
    )
    assert program.stdout.readline() == "there\n"
    cards = only().counters.cards
    assert [(card.physical, card.allocated) for card in cards] == [(2, 0), (5, 4096)]
    assert cards[1].work.busy_ps > 0 and cards[1].work.working_ns == 0  # timing mode: nothing is carried out


def test_a_forked_child_has_none(start):
    program = start(
        """
        import os, sys, torch
        torch.ones(1, device="spyre").cpu()
        child = os.fork()
        if not child:
            sys.stdin.read()
            sys.exit()
        print(child, flush=True)
        sys.stdin.read()
        os.waitpid(child, 0)
        """
    )
    program.stdout.readline()
    assert only().pid == program.pid


@pytest.mark.parametrize("way", ["off", "open to others"])
def test_nothing_is_published(way, start, counters):
    if way == "open to others":
        counters.chmod(0o777)
    program = start(WORK, **({"SPYRE_SMI": "0"} if way == "off" else {}))
    assert program.stdout.readline() == "there\n"
    do(program, 1)
    assert os.listdir(counters) == []


def test_a_wrong_setting_is_said(python):
    done = python("import torch; torch.ones(1, device='spyre')", SPYRE_SMI="somewhere")
    assert "SPYRE_SMI=somewhere: expected 0, 1 or the absolute path of a directory" in done.stderr


def test_a_process_reads_its_own_utilization():
    x = torch.ones(512, 512, dtype=torch.float16, device="spyre")
    torch.spyre.synchronize()
    torch.spyre.power_draw(), torch.spyre.temperature()
    assert torch.spyre.power_draw() == 20_000
    x @ x
    torch.spyre.synchronize()
    assert 0 <= torch.spyre.utilization() <= 100
    assert 20_000 < torch.spyre.power_draw() <= 75_000
    assert 25 < torch.spyre.temperature() < 100


def test_utilization_is_the_share_of_wall_time_at_work(monkeypatch):
    monkeypatch.setattr(telemetry, "_since", lambda *_: (4_000_000_000, Work(working_ns=1_000_000_000)))
    assert torch.spyre.utilization() == 25


def test_processes_find_each_other_whatever_their_environment(monkeypatch):
    monkeypatch.delenv("SPYRE_SMI", raising=False)
    before = processes.directory()
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/elsewhere")
    assert processes.directory() == before
