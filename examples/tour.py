"""A tour of the device: tensors, layouts, streams, memory, and the card's modelled time."""

import warnings

import torch


def heading(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m")


def tensors() -> None:
    heading("Tensors travel to the card, and come back rounded as the card rounds")
    x = torch.tensor([1.0, 1.001, 65504.0, 1e-7], dtype=torch.float16)
    y = x.to("spyre")
    print("on the host          ", x.tolist())
    print("after the card       ", y.cpu().tolist(), "  (SEN169: 6 exponent bits, 9 fraction bits)")
    print("a second trip changes", int((y.cpu().to("spyre").cpu() != y.cpu()).sum()), "values")


def layouts() -> None:
    heading("A tensor keeps its shape; its storage lies in sticks of 128 bytes")
    for shape in ([120], [1024, 256], [5, 10, 200]):
        tensor = torch.zeros(shape, dtype=torch.float16, device="spyre")
        print(f"{shape!s:<14} {tensor.device_tensor_layout()}")
    x = torch.arange(512 * 256, dtype=torch.float32).reshape(512, 256)
    rows = torch.spyre.SpyreTensorLayout([512, 256], [256, 1], torch.float32, [1, 0])
    y = x.to("spyre", device_layout=rows)
    print(f"sticks along rows    {y.device_tensor_layout()}")
    print("same values:", torch.equal(y.cpu(), x), "  a view:", torch.equal(y.t()[3:7, ::2].cpu(), x.t()[3:7, ::2]))


def streams() -> None:
    heading("Streams run side by side; time on them is the card's, the same on every run")
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


def memory() -> None:
    heading("Memory")
    keep = [torch.empty(1024, 1024, dtype=torch.float16, device="spyre") for _ in range(8)]
    free, total = torch.spyre.mem_get_info()
    print(f"allocated {torch.spyre.memory_allocated() >> 20} MiB, peak {torch.spyre.max_memory_allocated() >> 20} MiB,")
    print(f"{free >> 30} GiB free of {total >> 30} GiB; only what was touched takes memory of this machine")
    del keep
    try:
        torch.empty(10**12, dtype=torch.float16, device="spyre")
    except torch.OutOfMemoryError as error:
        print("asking for too much:", error)


def fallbacks() -> None:
    heading("What the card has no kernel for yet runs on the CPU, and says so")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        x = torch.eye(4, device="spyre") * 2
        inverse = torch.linalg.inv(x)
    for warning in seen:
        print("-", warning.message)
    print("counted:", torch.spyre.fallback_counts())
    print("the result is on the card again:", inverse.device, inverse.cpu()[0].tolist())


if __name__ == "__main__":
    card = torch.spyre.get_device_properties()
    print(
        f"{card.name}: {card.multi_processor_count} cores, {card.total_memory >> 30} GiB, mode {card.mode}, {card.simd}"
    )
    tensors()
    layouts()
    streams()
    memory()
    fallbacks()
