"""Time against size, both sides and the machine's limit: docs/scaling_*.svg, for matmul, softmax and a whole layer.

``python benchmarks/scaling.py [FIGURE ...]``; every figure is a process of its own.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from math import ceil, floor, log10
from pathlib import Path

import torch
from _cases import HALF, SINGLE, THREADS, Kernel, Peer, product
from _llama import Layer
from _timing import Row, amount, line
from speed import THREAD_SETTINGS

DOCS = Path(__file__).resolve().parent.parent / "docs"
SECONDS = 1.5  # of measuring, for each point
WIDTH, HEADS, KV_HEADS, INNER = 1024, 16, 8, 4096


def softmax(rows: int) -> Kernel:
    return Kernel(lambda: torch.nn.Softmax(-1), ((rows, 4096),), (Peer((HALF, SINGLE), 1.0),))


def layer(tokens: int) -> Kernel:
    """Of a Llama: its products, and a causal attention, of which the lower half is work."""
    head = WIDTH // HEADS
    weights = 2 * WIDTH * WIDTH + 2 * WIDTH * KV_HEADS * head + 3 * WIDTH * INNER
    return Kernel(
        lambda: Layer(WIDTH, HEADS, KV_HEADS, INNER),
        ((1, tokens, WIDTH), (tokens, head), (tokens, head)),
        (Peer((SINGLE,), 1.0),),
        2 * tokens * weights + 2 * WIDTH * tokens * tokens,
    )


def square(size: int) -> Kernel:
    return product(size, size, size, Peer((SINGLE,), 0.9))


FIGURES: dict[str, tuple[str, str, Callable[[int], Kernel], tuple[int, ...]]] = {
    "matmul": ("n x n times n x n", "n", square, (64, 128, 256, 512, 1024, 2048)),
    "softmax": ("softmax of n rows of 4096", "rows", softmax, (16, 64, 256, 1024, 4096)),
    "layer": ("a layer of a Llama, hidden size 1024", "tokens", layer, (1, 8, 32, 128, 512)),
}

COLOURS = {"card": "#0b62d6", "PyTorch on the CPU": "#c2410c", "limit": "#777777"}
LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 70, 40, 520, 300


def picture(title: str, axis: str, rows: dict[int, Row]) -> str:
    """Both axes logarithmic. Points that other processes disturbed are hollow."""
    lines = {
        "card": {size: row.ours for size, row in rows.items()},
        "PyTorch on the CPU": {size: row.theirs for size, row in rows.items()},
        "limit": {size: row.limit for size, row in rows.items() if row.limit is not None},
    }
    values = [seconds for points in lines.values() for seconds in points.values()]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    first, last = log10(min(rows)), log10(max(rows))

    def x(size: int) -> float:
        return LEFT + PLOT_WIDTH * (log10(size) - first) / (last - first)

    def y(seconds: float) -> float:
        return TOP + PLOT_HEIGHT * (high - log10(seconds)) / (high - low)

    bottom = TOP + PLOT_HEIGHT
    parts = [f'<text x="{LEFT}" y="24" font-size="15">{title}</text>']
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{LEFT} {at:.1f}h{PLOT_WIDTH}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{amount(10.0**power, "s")}</text>')
    for size in rows:
        parts.append(f'<text x="{x(size):.1f}" y="{bottom + 18}" text-anchor="middle">{size}</text>')
    parts.append(f'<text x="{LEFT + PLOT_WIDTH / 2}" y="{bottom + 38}" text-anchor="middle">{axis}</text>')
    for place, (name, points) in enumerate(lines.items()):
        colour, dashes = COLOURS[name], ' stroke-dasharray="5 4"' if name == "limit" else ""
        path = " ".join(f"{x(size):.1f},{y(seconds):.1f}" for size, seconds in points.items())
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        for size, seconds in points.items() if name != "limit" else ():
            fill = colour if rows[size].valid else "white"
            parts.append(f'<circle cx="{x(size):.1f}" cy="{y(seconds):.1f}" r="4" fill="{fill}" stroke="{colour}"/>')
        at = TOP + 16 + 18 * place
        parts.append(f'<path d="M{LEFT + 12} {at}h24" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.append(f'<text x="{LEFT + 44}" y="{at + 4}">{name}</text>')
    size = f'width="{LEFT + PLOT_WIDTH + 30}" height="{bottom + 50}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


def in_this_process(figure: str) -> None:
    torch.set_num_threads(THREADS)
    title, axis, kernel, sizes = FIGURES[figure]
    rows = {}
    for size in sizes:
        torch._dynamo.reset()
        rows[size] = kernel(size).rows(f"{figure}, {axis} {size}", SECONDS)[0]
        print(line(rows[size]), flush=True)
    (DOCS / f"scaling_{figure}.svg").write_text(picture(title, axis, rows))


def main(chosen: list[str]) -> None:
    unknown = [name for name in chosen if name not in FIGURES]
    if unknown:
        sys.exit(f"there is no figure {unknown[0]!r}; there are {', '.join(FIGURES)}")
    for figure in chosen or FIGURES:
        command = [sys.executable, __file__, "--in-this-process", figure]
        subprocess.run(command, env={**os.environ, **THREAD_SETTINGS}, check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-this-process"]:
        in_this_process(sys.argv[2])
    else:
        main(sys.argv[1:])
