"""``SHARD=i/n``: which part of a long run this machine does."""

from __future__ import annotations


def parse_shard(text: str) -> tuple[int, int]:
    """``2/5`` is the second of five. Raises ValueError."""
    part, _, parts = text.partition("/")
    found = int(part), int(parts)
    if not 1 <= found[0] <= found[1]:
        raise ValueError(f"{text!r} is no part of a whole: wanted is i/n with 1 <= i <= n")
    return found
