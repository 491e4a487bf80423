"""What is kept of a kernel that failed, or that somebody wants to look at: reports, captures, replay.

``torch.spyre`` has the functions here; what they need is imported when they are called.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .captures import Captured


def capture(path: str | Path, kernel: str | None = None, values: bool = True) -> AbstractContextManager[Captured]:
    """Inside, the first kernel that runs is written to a file, which ``spyre replay`` runs alone.

    ``kernel``: the first one whose name contains this. If ``path`` is a directory, all of them are written there, one
    file for each kernel and layout of its inputs. With ``values`` a file has inputs and results too. Kernels are
    prepared again inside, from the caches on disk. Raises CaptureError where no such kernel ran.
    """
    from . import captures

    return captures.capturing(Path(path), kernel, values)
