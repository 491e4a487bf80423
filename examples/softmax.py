"""Softmax three ways: op by op, compiled, and PyTorch's own. Compiling saves launches and moves no rounding."""

import math

import torch
from torch import Tensor


def softmax(x: Tensor) -> Tensor:
    """Every line is an op that rounds its result to the card's 9 fraction bits."""
    shifted = x - x.amax(-1, keepdim=True)
    powers = shifted.exp()
    return powers / powers.sum(-1, keepdim=True)


def timed(function, *inputs: Tensor) -> tuple[Tensor, float]:
    """The result, and modelled microseconds on the card; the first call compiles, the second is timed."""
    function(*inputs)
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    start.record()
    result = function(*inputs)
    end.record()
    torch.spyre.synchronize()
    return result, start.elapsed_time(end) * 1000


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(512, 1000).to(torch.float16).to("spyre")
    want = torch.softmax(x.cpu().double(), -1)
    ways = {
        "by hand, eager": softmax,  # five launches; on the real card the host takes its time for each
        "by hand, compiled": torch.compile(softmax, fullgraph=True),  # one
        "torch.softmax": lambda y: torch.softmax(y, -1),  # one: an eager op is a compiled graph of its own
    }
    results = {}
    with torch.spyre.fallback("error"):
        for name, way in ways.items():
            result, time = timed(way, x)
            results[name] = result.float().cpu().double()  # as fp16, the small ones would lose bits on the way
            worst = ((results[name] - want) / want).abs().max().item() * 2**9
            print(f"{name:<18} {time:6.1f} us on the card   worst error {worst:.2f} units in the last place")
    assert torch.equal(results["by hand, eager"], results["by hand, compiled"])
    # The shift is rounded before the exponential makes a relative error of its absolute one: large shifts cost most.
    shift = (x.float().amax(-1) - x.float().amin(-1)).max().item()
    half_a_place = 2.0 ** (math.floor(math.log2(shift)) - 10)
    print(
        f"the largest shift is {shift:.1f}; half its last place is {half_a_place * 2**9:.1f} units of the exponential"
    )


if __name__ == "__main__":
    main()
