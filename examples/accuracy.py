"""What 9 fraction bits cost: ops and a transformer block on the card, in bfloat16 and in fp16, against fp64.

The card's SEN169 has one fraction bit fewer than fp16 and two more than bfloat16. Its exponent reaches further than
fp16's, up to 2^32, but a tensor that leaves the card as fp16 has fp16's range again: results leave as fp32 here.
"""

import torch
import torch.nn.functional as F
from compile_block import Block
from torch import Tensor

FORMATS = {"SEN169": (torch.float16, "spyre"), "bfloat16": (torch.bfloat16, "cpu"), "float16": (torch.float16, "cpu")}


def error(function, inputs: list[Tensor], dtype: torch.dtype, device: str) -> float:
    """Norm of the difference from fp64, as a share of the result's; inputs are rounded first, and count."""
    want = function(*(x.double() for x in inputs))
    got = function(*(x.to(dtype).to(device) for x in inputs)).float().cpu().double()
    return ((got - want).norm() / want.norm()).item()


def block(x: Tensor) -> Tensor:
    torch.manual_seed(1)
    return Block().eval().to(x.device, x.dtype)(x)


CASES = {
    "x (rounding alone)": (lambda x, y: x, 1),
    "x + y": (torch.add, 1),
    "exp(x)": (lambda x, y: x.exp(), 1),
    "x @ y": (torch.matmul, 1),
    "softmax(x @ y)": (lambda x, y: F.softmax(x @ y / 16, -1), 1),
    "layer_norm(x)": (lambda x, y: F.layer_norm(x, x.shape[-1:]), 1),
    "a block": (lambda x, y: block(x[None]), 1),
    "x * y, both 2000 times as large": (torch.mul, 2000),
}


def main() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(256, 256), torch.randn(256, 256)
    found = {}
    print(f"{'relative error, in 2^-10':<32}" + "".join(f"{name:>10}" for name in FORMATS))
    with torch.no_grad(), torch.spyre.fallback("error"):
        for case, (function, scale) in CASES.items():
            found[case] = [error(function, [scale * x, scale * y], *way) * 2**10 for way in FORMATS.values()]
            print(f"{case:<32}" + "".join(f"{value:10.2f}" for value in found[case]))
    card, brain, half = found["x (rounding alone)"]
    assert half < card < brain, "10, 9 and 7 fraction bits"
    assert found["a block"][0] < found["a block"][1]
    assert found["x * y, both 2000 times as large"][0] < 2, "the card has room for numbers that fp16 has not"


if __name__ == "__main__":
    main()
