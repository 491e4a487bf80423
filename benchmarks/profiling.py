"""What a profile of the card costs while it runs, and what is left of it afterwards; what failure capture costs.

The work is a layer of a Llama, compiled, and a chain of small eager ops, where the host is all that counts. Each is
timed before the first profile of the process, inside one, and behind it, and with failures collected
(``TORCH_SPYRE_FFDC=1``).
"""

from collections.abc import Callable

import torch
from _llama import Layer
from _timing import best, best_interleaved, report
from torch.profiler import ProfilerActivity, profile

from torch_spyre.diagnostics import ffdc

ROUNDS, LENGTH = 15, 128


def compiled_layer() -> Callable[[], object]:
    layer = torch.compile(Layer(1024, 16, 4, 2816).half().to("spyre"))
    x = torch.randn(1, LENGTH, 1024).half().to("spyre")
    cos, sin = torch.ones(LENGTH, 64).half().to("spyre"), torch.zeros(LENGTH, 64).half().to("spyre")

    @torch.no_grad()
    def step() -> None:
        for _ in range(4):
            layer(x, cos, sin)
        torch.spyre.synchronize()

    return step


def eager_chain() -> Callable[[], object]:
    x = torch.randn(64, 64).half().to("spyre")

    def step() -> None:
        y = x
        for _ in range(500):
            y = y + x
        torch.spyre.synchronize()

    return step


def profiled(step: Callable[[], object], activities: list[ProfilerActivity]) -> float:
    """The best of some steps inside a profile; to start and to stop it is not part of a step."""
    with profile(activities=activities):
        step()
        return best(step, 3)


def collecting(step: Callable[[], object]) -> float:
    """The best of some steps while reports would be written of failures."""
    ffdc.install()
    try:
        return best(step, 3)
    finally:
        ffdc.uninstall()


def measure(name: str, step: Callable[[], object]) -> None:
    host, card = ProfilerActivity.CPU, ProfilerActivity.PrivateUse1
    step()
    before = min(best(step, 3) for _ in range(ROUNDS))
    found = best_interleaved(
        {
            "off": lambda: best(step, 3),
            "card": lambda: profiled(step, [card]),
            "host": lambda: profiled(step, [host]),
            "both": lambda: profiled(step, [host, card]),
            "ffdc": lambda: collecting(step),
        },
        ROUNDS,
    )
    off, alone = found["off"], found["host"]
    report(f"{name}: the card", found["card"], "without  ", off, found["card"] / off, "<= 1.05")
    report(f"{name}: the host too", found["both"], "host only", alone, found["both"] / alone, "<= 1.05")
    report(f"{name}: failure capture", found["ffdc"], "without  ", off, found["ffdc"] / off, "<= 1.05")
    report(f"{name}: off", off, "before   ", before, off / before, "<= 1.01")


if __name__ == "__main__":
    measure("Llama layer", compiled_layer())
    measure("500 eager ops", eager_chain())
