"""The rooms of the card depend on each other in one direction, and the device includes the card's public header."""

import re
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "torch_spyre" / "csrc"
CARD = SOURCES / "card"
# Each may include itself and those before it.
ROOMS = ["numeric", "telemetry", "memory", "clock", "engine", "program", "kernels", "fusion", "runtime"]
PUBLIC = {"card.h", "error.h"}


def included(file: Path) -> list[str]:
    """The card's headers that a file includes, from the card's folder on."""
    return re.findall(r'^#include "card/(.*)"', file.read_text(), re.MULTILINE)


def card_files() -> list[Path]:
    return [file for file in sorted(CARD.rglob("*")) if file.suffix in {".h", ".cpp", ".inc"}]


def test_every_room_is_listed():
    assert {path.name for path in CARD.iterdir()} == {*ROOMS, *PUBLIC}


def test_rooms_include_only_rooms_before_them():
    wrong = []
    for file in card_files():
        room = file.relative_to(CARD).parts[0]
        if room in PUBLIC or room == "runtime":
            continue
        allowed = {"error.h", *ROOMS[: ROOMS.index(room) + 1]}
        wrong += [f"{file.relative_to(CARD)}: {name}" for name in included(file) if name.split("/")[0] not in allowed]
    assert not wrong


def test_includes_name_the_whole_path():
    for file in card_files():
        for name in re.findall(r'^#include "(.*)"', file.read_text(), re.MULTILINE):
            assert name.startswith("card/"), f"{file}: {name}"


def test_the_device_includes_the_public_header():
    files = [file for file in SOURCES.rglob("*") if file.suffix in {".h", ".cpp"} and CARD not in file.parents]
    assert files
    wrong = [f"{file.relative_to(SOURCES)}: {name}" for file in files for name in included(file) if name not in PUBLIC]
    assert not wrong
