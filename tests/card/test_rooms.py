"""Rooms depend on each other in one direction, in the card and in the runtime; the device includes public headers."""

import re
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "torch_spyre" / "csrc"
CARD = SOURCES / "card"
# Each may include itself and those before it.
ROOMS = [
    *("numeric", "telemetry", "memory", "clock", "engine", "program", "kernels", "fusion", "runtime"),
    *("exchange", "tiles"),
]
PUBLIC = {"card.h", "exchange.h", "tiles.h", "error.h"}
EVERYONES = {"error.h", "text.h"}
RUNTIME_ROOMS = ["numbers", "calls", "device", "storage"]


def included(file: Path, folder: str = "card") -> list[str]:
    """The headers of the card, or of another folder, that a file includes; as paths inside of the folder."""
    return re.findall(rf'^#include "{folder}/(.*)"', file.read_text(), re.MULTILINE)


def sources(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.suffix in {".h", ".cpp", ".inc"}]


def test_every_room_is_listed():
    assert {path.name for path in CARD.iterdir()} == {*ROOMS, *PUBLIC, *EVERYONES}


def test_rooms_include_only_rooms_before_them():
    wrong = []
    for file in sources(CARD):
        room = file.relative_to(CARD).parts[0]
        if room in PUBLIC | EVERYONES or room in ("runtime", "exchange"):
            continue
        allowed = {*EVERYONES, *ROOMS[: ROOMS.index(room) + 1]}
        wrong += [f"{file.relative_to(CARD)}: {name}" for name in included(file) if name.split("/")[0] not in allowed]
    assert not wrong


def test_includes_name_the_whole_path():
    for file in sources(CARD):
        for name in re.findall(r'^#include "(.*)"', file.read_text(), re.MULTILINE):
            assert name.startswith("card/"), f"{file}: {name}"


def test_the_device_includes_public_headers():
    files = [file for file in sources(SOURCES) if CARD not in file.parents]
    assert files
    wrong = [f"{file.relative_to(SOURCES)}: {name}" for file in files for name in included(file) if name not in PUBLIC]
    assert not wrong


def test_rooms_of_the_runtime_include_only_rooms_before_them():
    runtime = SOURCES / "runtime"
    assert {path.name for path in runtime.iterdir() if path.is_dir()} == {*RUNTIME_ROOMS}
    wrong = []
    for i, room in enumerate(RUNTIME_ROOMS):
        for file in sources(runtime / room):
            names = included(file, "runtime")
            wrong += [f"{file.name}: {name}" for name in names if name.split("/")[0] not in RUNTIME_ROOMS[: i + 1]]
            wrong += [f"{file.name}: {folder}" for folder in ("aten", "python") if included(file, folder)]
    assert not wrong
