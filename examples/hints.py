"""Hints: a softmax in tiles that stay in the scratchpads, and what each number of tiles makes of the modelled time.

A matrix of scores is larger than all scratchpads together. Its softmax reads it again and again, unless it is done tile
by tile. Hints change times and not a bit of a result. work_division.py has hints of the other kind.
"""

import torch
from torch import Tensor

from torch_spyre import timing
from torch_spyre._inductor import spyre_hint


def softmax(tiles: int):
    def in_tiles(x: Tensor) -> Tensor:
        with spyre_hint(named_dims=["rows", "columns"], num_tiles_per_dim={"rows": tiles}):
            return torch.softmax(x, -1)

    return in_tiles


def timed(function, *inputs: Tensor) -> tuple[Tensor, timing.Recording]:
    """The result, and what was launched for it; the first call compiles."""
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=False)
    compiled(*inputs)
    with timing.record() as recording:
        result = compiled(*inputs)
    return result, recording


def compare(title: str, unhinted, hinted: dict[str, object], *inputs: Tensor) -> None:
    print(title)
    want, _ = timed(unhinted, *inputs)
    for name, function in {"the compiler's own choice": unhinted, **hinted}.items():
        result, recording = timed(function, *inputs)
        moved = sum(row.dram_bytes for row in recording.rows()) / 1e6
        print(f"  {name:<27} {recording.milliseconds * 1000:7.1f} us, {moved:6.1f} MB through device memory")
        assert torch.equal(result.cpu(), want.cpu())


def main() -> None:
    torch.manual_seed(0)
    scores = torch.randn(4096, 8192).half().to("spyre")
    with torch.spyre.fallback("error"):
        tiled = {f"{tiles} tiles of rows": softmax(tiles) for tiles in (2, 8, 32)}
        compare("softmax of 4096 x 8192, 64 MiB:", lambda x: torch.softmax(x, -1), tiled, scores)


if __name__ == "__main__":
    main()
