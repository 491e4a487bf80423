"""What is read of a model's directory, which may come from anywhere: regular files inside it, of bounded size."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from .errors import ModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
BOX = Path(__file__).parent / "box"  # a small model that comes along

_JSON_BYTES = 1 << 28  # the largest are tokenizers
_READ = (".json", ".safetensors", ".model", ".jinja", ".txt", ".tiktoken", ".bpe", ".vocab", ".py")


def check_directory(directory: Path) -> None:
    """Refuses a directory in which a file that may be read is no file, or lies elsewhere."""
    for folder, _, names in os.walk(directory):
        for name in names:
            if name.endswith(_READ):
                check_inside(directory, Path(folder, name))


def check_inside(directory: Path, file: Path) -> None:
    """Refuses a file that lies outside of a model's directory, or that is none.

    A snapshot in Hugging Face's cache is made of links to the blobs beside it.
    """
    try:
        home, found = directory.resolve(), file.resolve()
        mode = found.stat().st_mode if found.exists() else stat.S_IFREG
    except (OSError, ValueError, RuntimeError) as error:  # names that are none, links in a circle
        raise ModelError(f"{file} cannot be read: {error}") from error
    homes = [home, home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [home]
    if not any(found.is_relative_to(each) for each in homes):
        raise ModelError(f"{file} leads out of the directory of the model, to {found}")
    if not stat.S_ISREG(mode):
        raise ModelError(f"{file} is not a regular file")


def read_json(file: Path) -> dict[str, Any]:
    """The object that a file of JSON has."""
    try:
        if file.stat().st_size > _JSON_BYTES:
            raise ValueError(f"it has more than {_JSON_BYTES} bytes")
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not {_WHAT.get(file.name, 'a file of JSON')}: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{file} is not {_WHAT.get(file.name, 'a file of JSON')}: it has no object")
    return found


_WHAT = {"config.json": "a configuration", INDEX: "an index of weights"}


def indexed_files(directory: Path) -> list[Path]:
    """The files that an index names: there or not, they belong into its directory."""
    index = directory / INDEX
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ModelError(f"{index} is not an index of weights: it has no weight_map from names to files")
    for name in set(names.values()):
        if not name.endswith(".safetensors"):
            raise ModelError(f"{index} names {name!r}, which is no safetensors file")
        check_inside(directory, directory / name)
    return [directory / name for name in sorted(set(names.values()))]
