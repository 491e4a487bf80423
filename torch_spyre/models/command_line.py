"""What commands that run models have in common."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from .errors import ModelError


def add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="execute code that the model's directory brings along"
    )


def check_there(directory: Path) -> None:
    """Refuses what is no model at all, before seconds of imports."""
    if not directory.is_dir():
        raise ModelError(f"{directory} is not a directory with a model")
    if not (directory / "config.json").exists():
        raise ModelError(f"{directory} has no config.json: it is not a Hugging Face model")


def need_transformers(command: str) -> None:
    if find_spec("transformers") is None:
        raise ModelError(f"{command} needs transformers: pip install 'transformers==5.19.*'")


def import_models() -> None:
    """What takes seconds. Nothing is looked for on the network, and nothing is printed between the tokens."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    from . import generation, loading, report  # noqa: F401

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@contextmanager
def without_warnings() -> Iterator[None]:
    """The report says what warnings would say in the middle of a sentence."""
    from .. import device

    downcast = device.get_downcast_warning()
    device.set_downcast_warning(False)
    device.reset_fallback_counts()
    device.reset_peak_memory_stats()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=device.FallbackWarning)
            warnings.filterwarnings("ignore", message="SPYRE_CARD=timing")
            yield
    finally:
        device.set_downcast_warning(downcast)


@contextmanager
def ended_by_a_signal() -> Iterator[None]:
    """Ended from outside, what is being written is cleaned up as after Ctrl-C."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def refusals_of_the_card() -> Iterator[None]:
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError(f"the card has too little memory: {str(error).splitlines()[0]}") from error


@contextmanager
def failures_of_the_model() -> Iterator[None]:
    """A model that was built may still be none that runs: its sizes do not go together, or an op does not exist."""
    try:
        yield
    except (ModelError, OSError):
        raise
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"the model cannot be run: {said}") from error


# Who is on the stack while a model is compiled, and what that does; the innermost one is at work.
_COMPILERS = {
    "torch_spyre/backend/": "scheduling its program",
    "torch_spyre/execution/": "keeping its program",
    "torch_spyre/_inductor/": "planning its kernels",
    "torch/_inductor/": "fusing its ops",
    "torch/_functorch/": "decomposing its ops",
    "torch/_dynamo/": "tracing the model",
}


def compiler_at_work(thread: int) -> Callable[[], str]:
    """Says what a thread that compiles is doing: how long that takes is known when it is done, where it is always."""

    def said() -> str:
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._current_frames()[thread])]
        found = (what for file in files for part, what in _COMPILERS.items() if part in file)
        return next(found, "running it")

    return said


def started_card() -> str:
    """The mode of the card. Settings in the environment that are none are refused before a model is loaded."""
    try:
        from .. import _C
        from .._inductor import config  # noqa: F401
        from ..card.lx_budget import resident_budget

        mode = _C.card_mode()
        resident_budget()
        return mode
    except (ValueError, RuntimeError) as error:
        raise ModelError(str(error)) from error
