"""Hints: what the programmer knows of a softmax and a product, and what each choice makes of the modelled time.

A matrix of scores is larger than all scratchpads together. Its softmax reads it again and again, unless it is done tile
by tile, each small enough to stay in LX. How a product is divided over the cores is another choice. Hints change times
and not a bit of a result.
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


def product(rows: int, columns: int, depth: int):
    cores = {"rows": rows, "columns": columns, "depth": depth}

    def divided(a: Tensor, b: Tensor) -> Tensor:
        with spyre_hint(named_dims=["rows", "columns", "depth"], work_div=cores):  # one name more: what is summed over
            return a @ b

    return divided


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
    a, b = torch.randn(512, 1024).half().to("spyre"), torch.randn(1024, 1024).half().to("spyre")
    with torch.spyre.fallback("error"):
        tiled = {f"{tiles} tiles of rows": softmax(tiles) for tiles in (2, 8, 32)}
        compare("softmax of 4096 x 8192, 64 MiB:", lambda x: torch.softmax(x, -1), tiled, scores)
        divided = {
            "32 cores over the rows": product(32, 1, 1),
            "4 over rows, 8 over columns": product(4, 8, 1),
            "16 cores over the columns": product(1, 16, 1),
        }
        compare("product of 512 x 1024 and 1024 x 1024:", torch.mm, divided, a, b)


if __name__ == "__main__":
    main()
