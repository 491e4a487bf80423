"""What collectives give, computed by one process: every rank knows what all ranks put in, from a seed."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist

DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
)
Op = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
OPS: dict[str, Op] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int, rank: int) -> torch.Tensor:
    """What a rank puts in, on the host."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator)
    if not dtype.is_floating_point:
        return torch.randint(0, 5, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def on_card(shape: tuple[int, ...], dtype: torch.dtype, seed: int, rank: int) -> torch.Tensor:
    return values(shape, dtype, seed, rank).to("spyre")


def folded(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    """The fold in the order of the ranks, each step rounded by the card."""
    if op == "AVG":
        total = folded(tensors, "SUM")
        exact = total.dtype.is_floating_point or total.dtype.is_complex
        return total / len(tensors) if exact else torch.div(total, len(tensors), rounding_mode="trunc")
    return functools.reduce(OPS[op], tensors)


def reduce_op(name: str) -> dist.ReduceOp.RedOpType:
    return getattr(dist.ReduceOp, name)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Bit for bit, but for NaN and the sign of zero, which compare as PyTorch does."""
    found, expected = found.cpu(), expected.cpu()
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.dtype.itemsize == 1 and found.dtype.is_floating_point:
        return torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    return torch.equal(found, expected)
