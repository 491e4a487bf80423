"""Collectives of two cards against Gloo's of CPU tensors, with as many elements: ``python benchmarks/collectives.py``.

Both run in the same processes, turn by turn, and the best of several turns counts. A ratio above 1: cards are faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)  # bytes of float16 on the card
GOALS = {64 << 20: 1.0, 1 << 20: 2.0}  # against float32
SMALL, SMALL_GOAL = 4 << 10, 0.3  # ms
TURNS = 7


def seconds(call: Callable[[], None], repeats: int) -> float:
    dist.barrier()
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


def calls(elements: int) -> dict[str, dict[str, Callable[[], None]]]:
    """By collective and then by who carries it out."""
    result: dict[str, dict[str, Callable[[], None]]] = {"all_reduce": {}, "all_gather": {}}
    for name, device, dtype in (
        ("card fp16", "spyre", torch.float16),
        ("gloo fp32", "cpu", torch.float32),
        ("gloo fp16", "cpu", torch.float16),
    ):
        value = torch.zeros(elements, dtype=dtype, device=device)
        gathered = torch.zeros(elements * dist.get_world_size(), dtype=dtype, device=device)
        result["all_reduce"][name] = lambda value=value: dist.all_reduce(value)
        result["all_gather"][name] = lambda out=gathered, value=value: dist.all_gather_into_tensor(out, value)
    return result


def rank(sizes: list[int]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,spyre:spyreccl")
    rows = []
    for size in sizes:
        repeats = max(1, min(50, (8 << 20) // size))
        for collective, by in calls(size // 2).items():
            best = dict.fromkeys(by, float("inf"))
            for _ in range(TURNS):
                for name, call in by.items():
                    best[name] = min(best[name], seconds(call, repeats))
            rows.append((size, collective, best))
    if dist.get_rank() == 0:
        print(json.dumps(rows))
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, nargs="*", default=SIZES)
    options = parser.parse_args()
    if options.rank:
        rank(options.bytes)
        return 0
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--standalone"]
    again = [__file__, "--rank", "--bytes", *map(str, options.bytes)]
    output = subprocess.run(
        [*command, *again], stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ).stdout
    missed = 0
    print(f"{'bytes':>10}  {'collective':11} {'card':>9} {'x gloo fp32':>12} {'x gloo fp16':>12}")
    for size, collective, best in json.loads(output.splitlines()[-1]):
        card = best["card fp16"]
        ratio = best["gloo fp32"] / card
        good = card * 1e3 <= SMALL_GOAL if size == SMALL else ratio >= GOALS.get(size, 0)
        missed += not good
        mark = "" if good else "  missed"
        half = best["gloo fp16"] / card
        print(f"{size:>10}  {collective:11} {card * 1e3:6.2f} ms {ratio:12.2f} {half:12.2f}{mark}")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
