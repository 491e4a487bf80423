"""Which card is simulated: the constants of a description file."""

import os
import tomllib
from functools import cache
from pathlib import Path


def selected_file() -> Path:
    """The description in force: ``SPYRE_HARDWARE`` names another file than the package's own."""
    return Path(os.environ.get("SPYRE_HARDWARE") or Path(__file__).with_name("spyre.toml"))


@cache
def constants() -> dict[str, float]:
    """Every constant of the description by name."""
    return tomllib.loads(selected_file().read_text())
