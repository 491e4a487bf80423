"""Which op is wrong? A program beside the CPU, op by op; here a number becomes too large for halves on the card."""

import torch
from torch import Tensor


def program(x: Tensor) -> Tensor:
    squares = x * x
    total = squares.sum(-1, keepdim=True)
    return squares / total


def main() -> None:
    fine = torch.spyre.compare(program, torch.rand(8, 64, dtype=torch.bfloat16).to("spyre"))
    print(fine)
    assert fine.ok
    large = torch.spyre.compare(program, torch.full((8, 64), 1e6, dtype=torch.bfloat16).to("spyre"))
    print(large.first)  # the op, its line, and that its result is beyond the format
    assert large.first is not None and large.first.verdict == "range"
    assert torch.spyre.compare(program, torch.full((8, 64), 1e6).to("spyre")).ok  # float32 holds it


if __name__ == "__main__":
    main()
