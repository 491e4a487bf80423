"""Which card is simulated: the constants of a description file.

A file says all of them, or names what it differs from: ``base = "spyre"`` is the package's own description, any other
text a file beside it.
"""

import os
import tempfile
import tomllib
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

OWN = Path(__file__).with_name("spyre.toml")
_ON_DISK: list[Any] = []  # files that are to stay


def selected_file() -> Path:
    """The description in force: ``SPYRE_HARDWARE`` names another file than the package's own."""
    return Path(os.environ.get("SPYRE_HARDWARE") or OWN)


def constants() -> dict[str, float]:
    """Every constant of the description by name. Raises ValueError naming the file and what is wrong with it."""
    given = os.environ.get("SPYRE_HARDWARE") or ""
    return _selected(given, os.getcwd() if given else "")


@cache  # planners ask ten thousand times, and a Path takes longer to make than they do
def _selected(given: str, directory: str) -> dict[str, float]:
    return _read(Path(directory, given) if given else OWN.absolute())


def file_for_card() -> str:
    """The description as the software card reads it, one ``name = number`` per line: the file itself, or one in memory
    where it has a base."""
    path, found = selected_file(), constants()
    return _written(tuple(found.items())) if _base(path.absolute()) else str(path)


@cache
def _read(path: Path, above: tuple[Path, ...] = ()) -> dict[str, float]:
    given = _parsed(path)
    base = _base(path)
    if base in (path, *above):
        raise ValueError(f"the hardware description {path} is its own base")
    found = {**(_read(base, (*above, path)) if base else {}), **given}
    found.pop("base", None)
    _check(path, found)
    return found


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read the hardware description {path}: {why}") from error


def _base(path: Path) -> Path | None:
    name = _parsed(path).get("base")
    if name is None:
        return None
    return OWN if name == "spyre" else path.parent / str(name)


def _check(path: Path, found: dict[str, float]) -> None:
    """Refuses what no card is told: a name with a slip in it would change nothing, and nobody would see that."""
    known = _parsed(OWN)
    for name, value in found.items():
        if name not in known:
            raise ValueError(f"the hardware description {path} has {name}, which is no constant of a card")
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < inf:
            raise ValueError(f"the hardware description {path}: {name} = {value} is no number of a card")
    if missing := [name for name in known if name not in found]:
        raise ValueError(f'the hardware description {path} lacks {missing[0]}; base = "spyre" would bring the rest')
    if found["stick_bytes"] != known["stick_bytes"]:
        raise ValueError(f"the hardware description {path}: sticks have {known['stick_bytes']} bytes on every card")


@cache
def _written(found: tuple[tuple[str, float], ...]) -> str:
    """A file as long as the process: cards are made when they are first used."""
    text = "".join(f"{name} = {value}\n" for name, value in found).encode()
    file = os.memfd_create("hardware description")
    os.write(file, text)
    path = f"/proc/self/fd/{file}"
    return path if os.path.exists(path) else _on_disk(text)


def _on_disk(text: bytes) -> str:
    """For containers without /proc."""
    file = tempfile.NamedTemporaryFile(suffix=".toml")  # noqa: SIM115 - removed when the process ends
    _ON_DISK.append(file)
    file.write(text)
    file.flush()
    return file.name


STICK_BYTES = int(_parsed(OWN)["stick_bytes"])  # of every card: another width is refused above
