"""How a program's inputs are made. Both functions are printed into reproductions, so they stand alone."""

# ruff: noqa: F821
import torch


def numbers(kind, shape, dtype, seed, high=0):
    """Numbers of a kind. ``whole`` and ``quarters`` are in every dtype; ``order`` has no index twice in a row."""
    draw = torch.Generator().manual_seed(seed)
    if kind == "order":
        return torch.rand(*shape[:-1], high, generator=draw).argsort(-1)[..., : shape[-1]].contiguous()
    if kind == "index":
        return torch.randint(0, high, shape, generator=draw).to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape, generator=draw) < 0.5
    if kind == "whole" or not dtype.is_floating_point:
        return torch.randint(-8, 9, shape, generator=draw).to(dtype)
    if kind == "quarters":
        return (torch.randint(-12, 13, shape, generator=draw) / 4).to(dtype)
    low, width = {"real": (-3, 6), "positive": (0.5, 3), "small": (-1, 2)}[kind]
    return (torch.rand(shape, generator=draw) * width + low).to(dtype)


def placed(layout, device, kind, shape, dtype, seed, high):
    """The numbers on a device, in one of several layouts."""
    if layout == "transposed":
        turned = numbers(kind, shape[::-1], dtype, seed, high).to(device)
        return turned.permute(*reversed(range(len(shape))))
    if layout == "sliced":  # begins in the middle of a stick
        return numbers(kind, (*shape[:-1], shape[-1] + 8), dtype, seed, high).to(device)[..., 3 : 3 + shape[-1]]
    if layout == "strided":
        return numbers(kind, (*shape, 2), dtype, seed, high).to(device)[..., 1]
    if layout == "rows":
        return numbers(kind, (shape[0] + 1, *shape[1:]), dtype, seed, high).to(device)[1:]
    x = numbers(kind, shape, dtype, seed, high)
    if layout == "plain" or device == "cpu":
        return x.to(device)
    dims = list(range(len(shape)))
    order = [*dims, -1] if layout == "sparse" else [*dims[1:], 0]  # else "first": its sticks lie along dimension 0
    return x.to(device, device_layout=torch.spyre.SpyreTensorLayout(list(shape), list(x.stride()), dtype, order))
