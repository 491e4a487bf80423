"""Host to card and back, with the change of number format, against memcpy of the same bytes; one thread."""

import os

os.environ["SPYRE_THREADS"] = "1"

import ctypes

import torch
from _timing import best, best_interleaved, report

ROWS, COLUMNS = 4096, 4096
ROUNDS, REPEATS = 20, 3


def main() -> None:
    torch.set_num_threads(1)
    host = torch.randn(ROWS, COLUMNS).to(torch.float16)
    back = torch.empty_like(host)
    card = host.to("spyre")
    nbytes = host.numel() * host.element_size()

    measured = best_interleaved(
        {
            "memcpy": lambda: best(lambda: ctypes.memmove(back.data_ptr(), host.data_ptr(), nbytes), REPEATS),
            "to card": lambda: best(lambda: card.copy_(host), REPEATS),
            "to host": lambda: best(lambda: back.copy_(card), REPEATS),
        },
        ROUNDS,
    )
    memcpy = measured.pop("memcpy")
    simd = torch.spyre.get_device_properties().simd
    print(f"{ROWS}x{COLUMNS} float16, {nbytes / 2**20:.0f} MiB, instruction set {simd}")
    for name, seconds in measured.items():
        report(name, seconds, "memcpy", memcpy, memcpy / seconds, ">= 0.5 of memcpy's speed")


if __name__ == "__main__":
    main()
