"""Processes: spawn works, a fork of a process that uses the card is refused, and nothing is left behind."""

import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.multiprocessing


def in_fork(body):
    """What ``body()`` gave in a forked child, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(body())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def send_sum(pipe, x):
    pipe.send((torch.spyre.device_count(), x.to("spyre").cpu().sum().item()))


def test_spawn_works_while_the_parent_uses_the_card():
    x = torch.arange(5.0, device="spyre")
    context = torch.multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=send_sum, args=(theirs, x.cpu()))
    child.start()
    assert ours.recv() == (1, 10)
    child.join()
    assert child.exitcode == 0 and x.cpu().sum() == 10


USES = {
    "factory": lambda x: torch.ones(2, device="spyre"),
    "copy": lambda x: x.cpu(),
    "fill": lambda x: x.zero_(),
    "stream": lambda x: torch.spyre.Stream().synchronize(),
    "event": lambda x: torch.spyre.Event().record(),
    "pin": lambda x: torch.ones(1).pin_memory(),
    "memory": lambda x: torch.spyre.mem_get_info(),
    "init": lambda x: torch.spyre.init(),
    "properties": lambda x: torch.spyre.get_device_properties(),
}


@pytest.mark.parametrize("use", USES)
def test_a_fork_of_a_process_that_uses_the_card_is_refused(use):
    x = torch.ones(3, device="spyre")
    text = in_fork(lambda: USES[use](x))
    assert text == (
        "RuntimeError: Cannot use spyre in a forked subprocess: the card belongs to the parent process. "
        "To use spyre with multiprocessing, use the 'spawn' start method."
    )
    assert x.cpu().sum() == 3


def test_a_forked_child_may_ask_seed_and_let_go():
    x = [torch.ones(3, device="spyre")]

    def harmless():
        torch.manual_seed(1)
        x.clear()
        return torch.spyre.is_available(), torch.spyre.is_initialized(), torch.spyre._is_in_bad_fork()

    assert in_fork(harmless) == "(True, False, True)"
    assert x[0].cpu().sum() == 3


def test_a_forked_child_computes_on_the_cpu():
    torch.ones(3, device="spyre")
    assert in_fork(lambda: torch.ones(3).sum().item()) == "3.0"


def test_a_fork_before_the_first_use_may_use_the_card(program):
    printed = program("""
        import os, torch
        assert torch.spyre.is_available()
        if os.fork() == 0:
            print(torch.ones(2, device="spyre").tolist(), flush=True)
            os._exit(0)
        os.wait()
        print(torch.zeros(2, device="spyre").tolist())
    """)
    assert printed == "[1.0, 1.0]\n[0.0, 0.0]\n"


def test_data_loader_workers_are_forks_that_leave_the_card_alone():
    torch.ones(1, device="spyre")
    loader = torch.utils.data.DataLoader(range(6), batch_size=2, num_workers=2)
    assert [batch.to("spyre").cpu().tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


# Each line of input makes the process do one copy more; it says when it is ready to be killed.
WORKER = """
import sys, torch
stream = torch.spyre.Stream()
host = torch.ones(1 << 16).pin_memory()
with stream:
    for line in sys.stdin:
        x = host.to("spyre", non_blocking=True)
        print("copied", flush=True)
stream.synchronize()
"""


@pytest.mark.slow
def test_processes_that_exit_or_are_killed_leave_no_shared_memory():
    before = shared_memory()
    for batch in range(5):
        workers = [
            subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        for i, worker in enumerate(workers):
            worker.stdin.write("go\n")
            worker.stdin.flush()
            assert worker.stdout.readline() == "copied\n"
            if (batch + i) % 2:
                worker.kill()
            worker.communicate()
            assert worker.returncode == (-signal.SIGKILL if (batch + i) % 2 else 0)
    assert shared_memory() <= before


def test_exit_without_waiting(python):
    result = python("""
        import torch
        x = torch.ones(1 << 20).pin_memory()
        for _ in range(20):
            x.to("spyre", non_blocking=True)
    """)
    assert (result.returncode, result.stderr) == (0, "")


def test_exit_from_within_an_error(python):
    result = python("""
        import torch
        x = torch.ones(3, device="spyre")
        raise SystemExit(7)
    """)
    assert (result.returncode, result.stderr) == (7, "")


@pytest.mark.parametrize("touch", ["read", "write"])
def test_touching_device_memory_faults_and_names_the_tensor(python, touch):
    access = {"read": "value = at.value", "write": "at.value = 1"}[touch]
    result = python(f"""
        import ctypes, torch
        x = torch.ones(33, 65, dtype=torch.float16, device="spyre")
        at = ctypes.c_char.from_address(x.data_ptr())
        {access}
    """)
    assert result.returncode == -signal.SIGSEGV
    assert "torch_spyre: host code touched device memory of card 0 at 0x" in result.stderr
    assert "[33, 65]" in result.stderr and "Half" in result.stderr
    assert "use .cpu() to get a host copy" in result.stderr


def test_touching_freed_device_memory(python):
    result = python("""
        import ctypes, torch
        address = torch.ones(100, device="spyre").data_ptr()
        ctypes.c_char.from_address(address).value
    """)
    assert result.returncode == -signal.SIGSEGV
    assert "which belongs to no live tensor (freed storage?)" in result.stderr


def test_other_faults_are_not_ours(python):
    result = python("""
        import ctypes, torch
        torch.ones(1, device="spyre")
        ctypes.c_char.from_address(16).value
    """)
    assert result.returncode == -signal.SIGSEGV
    assert "torch_spyre" not in result.stderr


def test_faults_are_told_through_faulthandler(python):
    result = python("""
        import ctypes, faulthandler, torch
        x = torch.ones(7, device="spyre")
        faulthandler.enable()
        ctypes.c_char.from_address(x.data_ptr()).value
    """)
    assert result.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in result.stderr
    assert "touched device memory of card 0" in result.stderr and "[7]" in result.stderr
