"""What an eager op costs the host over a launch of the card, once its kernel is compiled."""

from collections.abc import Callable
from functools import partial
from itertools import count

import torch
from _timing import best, best_interleaved, report

from torch_spyre import _C

ROUNDS, BURST = 50, 20
ROWS, COLUMNS = 1024, 1024


def burst(call: Callable[[], object]) -> float:
    """Best seconds of one call among a few; the card catches up in between, and its work is not part of the time."""
    fastest = best(call, BURST)
    torch.spyre.synchronize()
    return fastest


def main() -> None:
    x, y = (torch.randn(ROWS, COLUMNS).to(torch.float16).to("spyre") for _ in range(2))
    out = torch.empty_like(x)
    host = torch.zeros(1, 1)
    empty = _C.prepare_kernel({"name": "empty", "arguments": [], "steps": []})
    weight, bias = (torch.randn(n).to(torch.float16).to("spyre") for n in (COLUMNS, COLUMNS))
    factors = count(2)
    calls: dict[str, Callable[[], object]] = {
        "x + y": lambda: x + y,
        "torch.add(x, y, out=out)": lambda: torch.add(x, y, out=out),
        "x.add_(y)": lambda: x.add_(y),
        "x * another number each time": lambda: x * float(next(factors)),
        "x.t() + y.t()": lambda: x.t() + y.t(),
        "x.relu()": lambda: x.relu(),
        "gelu(x)": lambda: torch.nn.functional.gelu(x),
        "x > 0": lambda: x > 0,
        "torch.where(x > 0, x, y)": lambda: torch.where(x > 0, x, y),
        "x.sum(1)": lambda: x.sum(1),
        "x.softmax(1)": lambda: x.softmax(1),
        "layer_norm(x)": lambda: torch.nn.functional.layer_norm(x, (COLUMNS,), weight, bias),
        "x @ y": lambda: x[:64] @ y,
        "torch.cat([x, y])": lambda: torch.cat([x, y]),
        "x.float()": lambda: x.float(),
    }
    with torch.spyre.fallback("error"):
        measured = best_interleaved(
            {
                "launch": lambda: _C.measure.launch(empty, BURST),
                **{name: partial(burst, call) for name, call in calls.items()},
                "CPU": lambda: burst(lambda: host + host),
            },
            ROUNDS,
        )
    launch, cpu = measured.pop("launch"), measured.pop("CPU")
    print(f"{ROWS}x{COLUMNS} float16, kernels compiled; an empty launch takes {launch * 1e6:.2f} us")
    for name, seconds in measured.items():
        more = seconds - launch
        report(name, more, "CPU, one element", cpu, more / cpu, "<= 40 us over the launch")


if __name__ == "__main__":
    main()
