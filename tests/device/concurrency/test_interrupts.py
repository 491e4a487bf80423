"""Ctrl-C and other signals: wherever the program is, whatever is queued."""

import signal

import pytest

# Minutes of work, queued in a moment: who waits for it to end meets the time limit of the test.
LONG = """
import os, random, signal, sys, threading, time, torch

def send(after, number=signal.SIGINT):
    timer = threading.Timer(after, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()

def insist(after):
    # Again every few seconds until the returned event is set: Python drops exceptions in destructors.
    caught = threading.Event()
    def press():
        time.sleep(after)
        while not caught.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            caught.wait(4)
    threading.Thread(target=press, daemon=True).start()
    return caught

x = torch.empty(4096, 4096, dtype=torch.float16, device="spyre").fill_(0.5)
kept = torch.arange(6.0).to("spyre")
torch.spyre.synchronize()

def queue(times=1000):
    y = torch.empty_like(x)
    for _ in range(times):
        torch.mm(x, x, out=y)
    return y

def check():
    assert (torch.ones(3, device="spyre") + 1).tolist() == [2, 2, 2]
    assert (kept * 2).tolist() == [0, 2, 4, 6, 8, 10]
"""

WAITS = {
    "synchronize": "torch.spyre.synchronize()",
    "stream": "torch.spyre.current_stream().synchronize()",
    "event": "torch.spyre.current_stream().record_event().synchronize()",
    "read": "y.cpu()",
    "item": "y[0, 0].item()",
    "copy": "y.copy_(torch.ones(4096, 4096, dtype=torch.float16))",
    "print": "print(y)",
    "host": "time.sleep(60)",
    "python": "any(time.monotonic() < 0 for _ in iter(int, 1))",
    "queueing": "while True: torch.mm(x, x, out=y)",
}


def some(every, *quick):
    """Every case is a process of its own: those that are not named are for the night."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in every]


@pytest.mark.parametrize("wait", some(WAITS, "synchronize", "item", "host", "queueing"))
def test_ctrl_c_ends_the_wait_and_the_next_op_works_at_once(program, wait):
    printed = program(
        LONG
        + f"""
y = queue()
send(0.3)
try:
    {WAITS[wait]}
except KeyboardInterrupt:
    print("interrupted")
check()
"""
    )
    assert printed == "interrupted\n"


@pytest.mark.parametrize("wait", some(["synchronize", "item", "host", "queueing"], "synchronize", "host"))
def test_a_program_that_ctrl_c_ends_does_not_wait_for_its_work(python, wait):
    result = python(LONG + f"y = queue()\nsend(0.3)\n{WAITS[wait]}")
    assert result.returncode == -signal.SIGINT
    assert result.stderr.rstrip().endswith("KeyboardInterrupt")


# One step each, that takes minutes: it is stopped in the middle. Fresh memory of the card is zeros, and takes none of
# this machine's until it is written.
STEPS = {
    "matmul": "torch.mm(empty(16384, 32768), empty(32768, 16384))",
    "integer matmul": "torch.mm(empty(4096, 16384, dtype=torch.int32), empty(16384, 4096, dtype=torch.int32))",
    "attention": "torch.nn.functional.scaled_dot_product_attention(*[empty(1, 64, 32768, 128) for _ in range(3)])",
}


@pytest.mark.parametrize("step", some(STEPS, "matmul"))
def test_a_step_stops_in_the_middle(program, step):
    printed = program(
        LONG
        + f"""
def empty(*size, dtype=torch.float16):
    return torch.empty(size, dtype=dtype, device="spyre")
small = {STEPS[step].replace("32768", "64").replace("16384", "64").replace("4096", "64")}  # compiles
torch.spyre.synchronize()
y = {STEPS[step]}
send(0.5)
try:
    torch.spyre.synchronize()
except KeyboardInterrupt:
    print("interrupted")
check()
"""
    )
    assert printed == "interrupted\n"


def test_ctrl_c_at_any_moment(python):
    """Rounds of short ops, waits and copies; the signal comes whenever."""
    result = python(
        LONG
        + """
random.seed(0)
small = torch.ones(64, 64, device="spyre")
for number in range(30):
    try:
        caught = insist(random.random() * 0.05)
        while True:
            a = (small + number) @ small
            a.add_(1)
            a.sum().item()
            torch.ones(1 << 16).to("spyre").cpu()
    except KeyboardInterrupt:
        caught.set()
    check()
print("done")
"""
    )
    assert (result.stdout, result.returncode) == ("done\n", 0), result.stderr


@pytest.mark.parametrize("module", ["sympy.core.relational", "sympy.core.singleton", "torch_spyre._inductor.compiler"])
def test_ctrl_c_in_an_import_of_the_compiler(program, module):
    """SymPy, of which half is imported, cannot be imported again."""
    printed = program(
        f"""
        import os, signal, sys, time, torch
        class Interrupt:
            def find_spec(self, name, path=None, target=None):
                if name == "{module}":
                    sys.meta_path.remove(self)
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupt())
        try:
            torch.ones(3, device="spyre") + 1
            time.sleep(60)
        except KeyboardInterrupt:
            print("interrupted")
        print((torch.ones(3, device="spyre") + 1).tolist(), signal.getsignal(signal.SIGINT).__name__)
        """,
        SPYRE_KERNEL_CACHE="0",
    )
    assert printed == "interrupted\n[2.0, 2.0, 2.0] default_int_handler\n"


@pytest.mark.slow
def test_twice_in_a_row(program):
    printed = program(
        LONG
        + """
y = queue()
send(0.2)
send(0.8)
for _ in range(2):
    try:
        torch.spyre.synchronize()
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted")
check()
"""
    )
    assert printed == 2 * "interrupted\n"


@pytest.mark.slow
def test_a_handler_that_does_not_raise_changes_nothing(program):
    printed = program(
        LONG
        + """
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
small = torch.eye(1024, dtype=torch.float16).to("spyre") * 2
for i in range(20):
    send(0.02 * i, signal.SIGINT if i % 2 else signal.SIGUSR1)
for _ in range(8):
    y = torch.eye(1024, dtype=torch.float16).to("spyre")
    for _ in range(6):
        y = y @ small
    assert torch.equal(y.cpu(), torch.eye(1024, dtype=torch.float16) * 64)
while len(seen) < 5:
    torch.spyre.synchronize()
print("right")
"""
    )
    assert printed == "right\n"


@pytest.mark.slow
def test_a_handler_may_use_the_card(program):
    printed = program(
        LONG
        + """
signal.signal(signal.SIGUSR1, lambda *_: print("handler", kept.sum().item(), flush=True))
y = queue(3)
send(0.1, signal.SIGUSR1)
torch.spyre.synchronize()
print("values", y[0, 0].item())
"""
    )
    assert printed.splitlines()[0] == "handler 15.0"
    assert printed.splitlines()[1].startswith("values ")


@pytest.mark.slow
def test_an_ignored_ctrl_c_is_ignored(program):
    printed = program(
        LONG + "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsend(0.05)\ny = queue(2)\ntorch.spyre.synchronize()\n"
        "print(y.shape)"
    )
    assert printed == "torch.Size([4096, 4096])\n"


def test_the_default_action_kills_at_once(python):
    for number in (signal.SIGINT, signal.SIGTERM):
        result = python(
            LONG + f"signal.signal({int(number)}, signal.SIG_DFL)\ny = queue()\nsend(0.2, {int(number)})\ny.cpu()"
        )
        assert result.returncode == -number and result.stderr == ""


@pytest.mark.slow
def test_a_handler_that_exits(python):
    result = python(
        LONG + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\ny = queue()\nsend(0.2, signal.SIGTERM)\ny.cpu()"
    )
    assert (result.returncode, result.stderr) == (3, "")


VALUES = """
gate, inside = threading.Event(), threading.Event()
torch.spyre.current_stream().add_callback(lambda: (inside.set(), gate.wait(60)))
inside.wait()
changed = kept.add_(1)        # not carried out: keeps its values
fresh = kept + 1              # has none
send(0.2)
try:
    torch.spyre.synchronize()
except KeyboardInterrupt:
    gate.set()
"""


def test_what_was_dropped_did_not_happen(program):
    printed = program(
        LONG
        + VALUES
        + """
print(changed.tolist())
for use in (fresh.cpu, fresh.sum, lambda: fresh.add_(1), lambda: kept + fresh, lambda: kept.copy_(fresh)):
    try:
        use()
    except RuntimeError as error:
        assert "dropped" in str(error)
    else:
        print("no error")
assert fresh.shape == (6,)
print(fresh.zero_().tolist(), fresh.copy_(torch.ones(6)).sum().item())
fresh = kept + 1
print(fresh.tolist())
"""
    )
    assert (
        printed
        == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]\n[0.0, 0.0, 0.0, 0.0, 0.0, 0.0] 6.0\n[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]\n"
    )


@pytest.mark.slow
def test_other_threads_learn_that_their_work_was_dropped(program):
    printed = program(
        LONG
        + """
queued, told = threading.Event(), []
def work():
    y = queue()
    queued.set()
    try:
        torch.spyre.synchronize()
    except RuntimeError as error:
        told.append(str(error))
    check()
other = threading.Thread(target=work)
other.start()
queued.wait()
send(0.2)
try:
    torch.spyre.synchronize()
except KeyboardInterrupt:
    check()
other.join()
print(len(told), "interrupted" in told[0])
"""
    )
    assert printed == "1 True\n"


def test_ctrl_c_while_compiling(program):
    printed = program(
        LONG
        + """
import torch._inductor.compile_fx  # an import of it that is interrupted cannot be repeated, on any device
random.seed(1)
count = 0
for i in range(6):
    torch._dynamo.reset()
    def f(a, b):
        return torch.softmax((a * i + b).exp() @ b, -1) + i
    try:
        caught = insist(random.random() * 0.5)
        torch.compile(f)(torch.ones(64, 64, device="spyre"), torch.ones(64, 64, device="spyre")).cpu()
        time.sleep(30)
    except KeyboardInterrupt:
        caught.set()
        count += 1
f = torch.compile(lambda a, b: torch.softmax(a @ b, -1))
a, b = torch.randn(64, 64), torch.randn(64, 64)
torch.testing.assert_close(f(a.to("spyre"), b.to("spyre")).cpu(), torch.softmax(a @ b, -1), atol=1e-4, rtol=1e-4)
check()
print(count)
""",
        SPYRE_KERNEL_CACHE="0",
        TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
    )
    assert printed == "6\n"


CALLBACKS = {
    "stream": "stream.synchronize()",
    "device": "torch.spyre.synchronize()",
    "event": "event.synchronize()",
    "read": "with stream: torch.ones(2, device='spyre').cpu()",
    "another": "other.synchronize()",
}


@pytest.mark.parametrize("wait", some(CALLBACKS, "stream", "another"))
def test_a_callback_that_waits_for_its_own_stream_is_an_error(program, wait):
    printed = program(
        f"""
        import threading, torch
        torch.ones(2, device="spyre")
        stream, other, go = torch.spyre.Stream(), torch.spyre.Stream(), threading.Event()
        def wait():
            go.wait()
            {CALLBACKS[wait]}
        stream.add_callback(wait)
        event = stream.record_event()
        other.wait_event(event)
        go.set()
        try:
            stream.synchronize()
        except RuntimeError as error:
            print(error)
        torch.spyre.synchronize()
        with stream:
            print((torch.ones(2, device="spyre") + 1).tolist())
        """
    )
    assert "only when the callback returns" in printed and printed.endswith("[2.0, 2.0]\n")


def test_a_callback_may_wait_for_other_streams(program):
    printed = program(
        """
        import torch
        stream, other = torch.spyre.Stream(), torch.spyre.Stream()
        x = torch.ones(2, device="spyre")
        stream.add_callback(lambda: print((x + 1).tolist(), flush=True))
        stream.add_callback(other.synchronize)
        stream.synchronize()
        """,
        SPYRE_THREADS="1",
    )
    assert printed == "[2.0, 2.0]\n"
