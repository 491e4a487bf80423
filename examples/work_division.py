"""Divide a product over the cores by hand: what each division takes by the clock, beside the compiler's own choice."""

import torch
from torch import Tensor

from torch_spyre import timing
from torch_spyre._inductor import spyre_hint

DIVISIONS = {"32 over the rows": (32, 1, 1), "4 over rows, 8 over columns": (4, 8, 1), "16 over columns": (1, 16, 1)}


def divided(rows: int, columns: int, depth: int):
    cores = {"rows": rows, "columns": columns, "depth": depth}

    def product(a: Tensor, b: Tensor) -> Tensor:
        with spyre_hint(named_dims=["rows", "columns", "depth"], work_div=cores):  # one name more: what is summed over
            return a @ b

    return product


def timed(function, *inputs: Tensor) -> tuple[Tensor, float]:
    """The result, and its modelled microseconds; the first call compiles."""
    compiled = torch.compile(function, fullgraph=True, dynamic=False)
    compiled(*inputs)
    with timing.record() as recording:
        result = compiled(*inputs)
    return result, recording.milliseconds * 1000


def main() -> None:
    a, b = torch.randn(512, 1024).half().to("spyre"), torch.randn(1024, 1024).half().to("spyre")
    want, own = timed(torch.mm, a, b)
    print(f"{'the compiler':<28} {own:7.1f} us")
    for name, division in DIVISIONS.items():
        result, us = timed(divided(*division), a, b)
        print(f"{name:<28} {us:7.1f} us")
        assert torch.equal(result.cpu(), want.cpu())  # a division changes the time and no bit


if __name__ == "__main__":
    main()
