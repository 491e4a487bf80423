"""PyTorch's threads that run backward passes on the cards, when the process ends.

A thread tells the caller that a backward pass is done, and only then gives up what it held of it, for which it needs
the interpreter. A program that ends with a backward pass may have ended the interpreter by then, and the thread would
abort the process.
"""

from __future__ import annotations

import atexit
import re
from pathlib import Path

import torch

from .. import _C
from ..constants import DEVICE_NAME

_NAME = re.compile(r"pt_autograd_(\d+)")
_kept: list[torch.Tensor] = []  # so that no thread frees a Python object on behalf of this module


@atexit.register
def _wait_for_threads() -> None:
    """A thread that takes another task has given up what it held of those before."""
    if not _C.runtime_started() or _C.in_bad_fork():
        return
    for index in _running():
        try:
            leaf, gradient = (torch.empty((), device=torch.device(DEVICE_NAME, index)) for _ in range(2))
            _kept.extend((leaf.requires_grad_(), gradient))
            # Not torch.autograd.backward, which gives the thread a Python object.
            torch.autograd.Variable._execution_engine.run_backward((leaf,), (gradient,), False, False, (), True, True)
        except RuntimeError:  # of a card that has failed: its thread is idle
            pass


def _running() -> list[int]:
    """The cards that have such a thread: those with lower numbers than another device may lack one."""
    found = set()
    for name in Path("/proc/self/task").glob("*/comm"):
        try:
            thread = _NAME.fullmatch(name.read_text().strip())
        except OSError:  # the thread has ended
            continue
        if thread and int(thread[1]) < _C.device_count():
            found.add(int(thread[1]))
    return sorted(found)
