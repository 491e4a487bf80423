"""Memory of the card: what is allocated, what only looks so, and what a message says when there is not enough."""

import torch


def main() -> None:
    keep = [torch.empty(1024, 1024, dtype=torch.float16, device="spyre") for _ in range(8)]
    free, total = torch.spyre.mem_get_info()
    print(f"allocated {torch.spyre.memory_allocated() >> 20} MiB, peak {torch.spyre.max_memory_allocated() >> 20} MiB,")
    print(f"{free >> 30} GiB free of {total >> 30} GiB; only what was touched takes memory of this machine")
    del keep
    try:
        torch.empty(10**12, dtype=torch.float16, device="spyre")
    except torch.OutOfMemoryError as error:
        print("asking for too much:", error)


if __name__ == "__main__":
    main()
