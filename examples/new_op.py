"""Add an op from outside of the tree: its meaning on the CPU, and a lowering that builds it out of the card's ops."""

import torch
from torch import Tensor

from torch_spyre import compiler


@torch.library.custom_op("example::swish", mutates_args=(), device_types="cpu")
def swish(x: Tensor, beta: float) -> Tensor:
    return x * torch.sigmoid(beta * x)


@swish.register_fake
def _(x: Tensor, beta: float) -> Tensor:
    return torch.empty_like(x)


@compiler.register_lowering(torch.ops.example.swish)
def lowered(b: compiler.Builder, x: compiler.Value, beta: float) -> compiler.Value:
    gate = b.pointwise("sigmoid", b.pointwise("mul", x, beta, dtype=torch.float32), dtype=torch.float32)
    return b.pointwise("mul", x, gate, dtype=b.meta.dtype)  # rounded once, here


def main() -> None:
    x = torch.randn(4, 100).half().to("spyre")
    with torch.spyre.fallback("error"):  # it has to run on the card
        eager = torch.ops.example.swish(x, 1.5)
        compiled = torch.compile(lambda x: torch.ops.example.swish(x, 1.5))(x)
    assert torch.equal(eager.cpu(), compiled.cpu())
    report = torch.spyre.compare(lambda x: torch.ops.example.swish(x, 1.5), x)
    print(report)
    assert report.ok


if __name__ == "__main__":
    main()
