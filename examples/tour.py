"""A tour of the device: how numbers round, how tensors lie in sticks, and what happens to ops that the card lacks."""

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
    fallbacks()
