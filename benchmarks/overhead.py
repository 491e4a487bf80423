"""What PyTorch's way to the card costs over the card's own C++ API, and over PyTorch on the CPU."""

import torch
from _timing import best, best_interleaved, report

from torch_spyre import _C

ROUNDS = 20


def copies() -> None:
    for mebibytes in (16, 64):
        host = torch.randn(mebibytes * 2**20 // 2 // 4096, 4096).to(torch.float16)
        back = torch.empty_like(host)
        card = host.to("spyre")
        measured = best_interleaved(
            {
                "C++ to card": lambda: _C.measure.to_card(card, host, 3),  # noqa: B023 - called in this turn
                "to card": lambda: best(lambda: card.copy_(host), 3),  # noqa: B023
                "C++ to host": lambda: _C.measure.to_host(back, card, 3),  # noqa: B023
                "to host": lambda: best(lambda: back.copy_(card), 3),  # noqa: B023
            },
            ROUNDS,
        )
        for way in ("to card", "to host"):
            ours, direct = measured[way], measured[f"C++ {way}"]
            report(f"copy {mebibytes} MiB {way}", ours, "C++ API", direct, ours / direct, "<= 1.05")


def launches() -> None:
    plan = _C.prepare_kernel({"name": "empty", "arguments": [], "steps": []})
    measured = best_interleaved(
        {
            "C++": lambda: _C.measure.launch(plan, 500),
            "PyTorch": lambda: (best(lambda: _C.launch_jobplan(plan, []), 500), torch.spyre.synchronize())[0],
        },
        ROUNDS,
    )
    more = (measured["PyTorch"] - measured["C++"]) * 1e6
    print(f"empty launch: C++ API {measured['C++'] * 1e6:.2f} us, from Python {more:+.2f} us (asked: <= +3 us)")


def allocations() -> None:
    def cycle(device: str) -> float:
        def thousand() -> None:
            for _ in range(1000):
                torch.empty(1024, device=device)

        return best(thousand, 3) / 1000

    measured = best_interleaved({device: lambda d=device: cycle(d) for device in ("cpu", "spyre")}, ROUNDS)
    ours, theirs = measured["spyre"], measured["cpu"]
    report("torch.empty(1024) and free", ours, "CPU    ", theirs, ours / theirs, "<= 3")


if __name__ == "__main__":
    copies()
    launches()
    allocations()
