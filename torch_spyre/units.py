"""Numbers as people read them."""

from __future__ import annotations


def seconds(number: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number / 1e-6:.3g} µs"


def size(number: int) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.2f} million"
