"""Best-of-many timing, with the sides interleaved so that both see the same machine."""

import time
from collections.abc import Callable


def best(call: Callable[[], object], repeats: int) -> float:
    """Best wall-clock seconds of one call."""
    fastest = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def best_interleaved(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Each side measures itself once per round, in turn; the best of each side."""
    fastest = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for name, measure in sides.items():
            fastest[name] = min(fastest[name], measure())
    return fastest


def report(name: str, seconds: float, against: str, limit: float, ratio: float, bound: str) -> None:
    both = f"{seconds * 1e6:10.2f} us   {against} {limit * 1e6:10.2f} us"
    print(f"{name:<32} {both}   ratio {ratio:5.2f}   (asked: {bound})")
