"""Drops instructions whose results nobody reads, and says behind which one a tile's memory is free."""

from __future__ import annotations

from typing import Any

_ACTS = {"store", "produce", "reduce", "consume", "runtime_argument"}


def finish(block: dict[str, Any], tiles: set[int]) -> None:
    _drop(block, set())
    _free(block, tiles)


def _reads(instruction: dict[str, Any]) -> set[int]:
    found = set(instruction["in"])
    if "body" in instruction:
        found |= set(instruction["body"]["tables"])
    for block in instruction.get("blocks", ()):
        found |= set(block["results"])
        for inner in block["instructions"]:
            found |= inner["reads"] if "reads" in inner else _reads(inner)
    return found


def _acts(instruction: dict[str, Any]) -> bool:
    return instruction["code"] in _ACTS or any(
        _acts(inner) for block in instruction.get("blocks", ()) for inner in block["instructions"]
    )


def _drop(block: dict[str, Any], live: set[int]) -> None:
    """``live``: slots that are read behind the block."""
    live = live | set(block["results"])
    kept = []
    for instruction in reversed(block["instructions"]):
        if not live.intersection(instruction["out"]) and not _acts(instruction):
            continue
        for inner in instruction.get("blocks", ()):
            _drop(inner, live | set(inner["arguments"]))
        instruction["reads"] = _reads(instruction)
        live |= instruction["reads"]
        kept.append(instruction)
    block["instructions"] = kept[::-1]


def _free(block: dict[str, Any], tiles: set[int]) -> None:
    """Slots of this block's own are free behind the last instruction that reads them."""
    own = set(block["arguments"]) | {slot for each in block["instructions"] for slot in each["out"]}
    waiting = (own & tiles) - set(block["results"])
    block["moved"] = [
        slot in own and slot not in block["arguments"] and block["results"].count(slot) == 1
        for slot in block["results"]
    ]
    for instruction in reversed(block["instructions"]):
        last = (instruction["reads"] | set(instruction["out"])) & waiting
        instruction["free"] = sorted(last)
        waiting -= last
        del instruction["reads"]
        for inner in instruction.get("blocks", ()):
            _free(inner, tiles)
