"""Streams run side by side: a copy and a fill at a time, and events that time them on the card's modelled clock."""

import torch


def main() -> None:
    start, copied, filled = (torch.spyre.Event(enable_timing=True) for _ in range(3))
    transfers, fills = torch.spyre.Stream(), torch.spyre.Stream()
    host = torch.randn(2048, 4096).to(torch.float16).pin_memory()
    card = torch.empty(2048, 4096, dtype=torch.float16, device="spyre")
    other = torch.empty_like(card)
    start.record(transfers)
    with transfers:
        card.copy_(host, non_blocking=True)
        copied.record()
    with fills:
        fills.wait_event(start)
        other.fill_(1.0)
        filled.record()
    torch.spyre.synchronize()
    print(f"copy 16 MiB to the card: {start.elapsed_time(copied):7.3f} ms on {transfers}")
    print(f"fill 16 MiB on the card: {start.elapsed_time(filled):7.3f} ms on {fills}")


if __name__ == "__main__":
    main()
