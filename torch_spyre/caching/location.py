"""Where caches lie on disk."""

from __future__ import annotations

import getpass
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from .store import warn_unused

FOLDER = "spyre"  # of ours, in a directory that may hold other things


def directory() -> Path | None:
    """The folder that all caches share; None when caching is turned off, or where there is no place for it.

    It is a folder of ours in ``SPYRE_KERNEL_CACHE``, or in Inductor's own cache.
    """
    given = os.environ.get("SPYRE_KERNEL_CACHE", "")
    if given == "0":
        return None
    try:
        return _without_links(given if given not in ("", "1") else _inductors()) / FOLDER
    except OSError as error:  # no directory for temporary files, or the current one is gone
        warn_unused(Path(given or FOLDER), error)
        return None


def _inductors() -> str:
    """As in torch._inductor.runtime.cache_dir_utils, whose import takes a second that eager programs should not wait.

    The user may have no name.
    """
    if given := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return given
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid_{os.getuid()}"
    return os.path.join(tempfile.gettempdir(), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


def _without_links(given: str) -> Path:
    """An absolute path, on which links are refused later; those of the system's temporary directory are its own."""
    path = Path(os.path.abspath(given))
    with suppress(OSError, ValueError):
        temporary = tempfile.gettempdir()
        return Path(os.path.realpath(temporary)) / path.relative_to(temporary)
    return path
