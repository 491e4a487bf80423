"""Latency against load as a picture: SVG, without a library."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bench import Outcome

WIDTH, HEIGHT, EDGE = 640, 360, 56
SERIES = (("TTFT p50", 50, True), ("TTFT p99", 99, True), ("ITL p50", 50, False), ("ITL p99", 99, False))
COLOURS = ("#1f6feb", "#a5c8ff", "#bf3989", "#f2b8d9")


def latency_against_load(outcomes: list[Outcome]) -> str:
    """Times to first tokens and between tokens, in milliseconds on a logarithmic scale, over requests per second."""
    from math import log10

    from .bench import percentile

    lines = [
        [(each.rate, 1000 * percentile(each.first if first else each.between, p)) for each in outcomes]
        for _, p, first in SERIES
    ]
    values = [log10(max(y, 1e-3)) for line in lines for _, y in line]
    low, high = int(min(values) // 1), int(-(-max(values) // 1))
    high = max(high, low + 1)
    most = max(each.rate for each in outcomes)

    def x(rate: float) -> float:
        return EDGE + (WIDTH - 2 * EDGE) * rate / most

    def y(value: float) -> float:
        return HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (log10(max(value, 1e-3)) - low) / (high - low)

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        drawn.append(f'<line x1="{EDGE}" x2="{WIDTH - EDGE}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        drawn.append(f'<text x="{EDGE - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g} ms</text>')
    for outcome in outcomes:
        drawn.append(
            f'<text x="{x(outcome.rate):.1f}" y="{HEIGHT - EDGE + 18}" text-anchor="middle">{outcome.rate:g}</text>'
        )
    drawn.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">requests per second</text>')
    for (name, _, _), colour, line, row in zip(SERIES, COLOURS, lines, range(4), strict=True):
        points = " ".join(f"{x(rate):.1f},{y(value):.1f}" for rate, value in line)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x(rate):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>' for rate, value in line]
        drawn.append(f'<text x="{EDGE + 8 + 110 * row}" y="24" fill="{colour}">{name}</text>')
    return "\n".join([*drawn, "</svg>", ""])
