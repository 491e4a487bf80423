"""``spyre serve``: ``vllm serve`` with defaults for the card."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..models.command_line import check_there
from ..models.errors import ModelError
from ..models.files import BOX

VERSION = "0.32."
SIMULATE = "--simulate"
# What vLLM assumes otherwise is meant for hundreds of requests at a time; each size that a step may have is compiled.
DEFAULTS = {"--max-num-seqs": "16", "--max-num-batched-tokens": "512", "--shutdown-timeout": "60"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "spyre serve [MODEL_DIR] [--simulate] [options of vllm serve]"
    parser.add_argument(
        "given",
        nargs=argparse.REMAINDER,
        metavar="MODEL_DIR",
        help="a Hugging Face directory, and options of vllm serve; no directory: the small model in the box. "
        f"{SIMULATE}: full-size models in timing mode, with random tokens",
    )
    parser.set_defaults(command=_serve)


def _serve(arguments: argparse.Namespace) -> None:
    check_vllm()
    given = arguments.given[1:] if arguments.given[:1] == ["--"] else arguments.given  # argparse's own
    command = command_for(given)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if SIMULATE in given:
        os.environ["SPYRE_CARD"] = "timing"
    os.execv(sys.executable, [sys.executable, "-m", "vllm.entrypoints.cli.main", *command])


def check_vllm() -> None:
    """Says in one line what is missing, before seconds of imports."""
    how = "run make serve-setup, or see docs/serving.md"
    try:
        found = version("vllm")
    except PackageNotFoundError:
        raise ModelError(f"spyre serve needs vLLM {VERSION}*, built for no device: {how}") from None
    if not found.startswith(VERSION):
        raise ModelError(f"spyre serve needs vLLM {VERSION}*, and {found} is installed: {how}")


def command_for(given: list[str]) -> list[str]:
    """The arguments of ``vllm``. What is given goes on to it; defaults are added where nothing was said."""
    rest = [each for each in given if each != SIMULATE]
    model = Path(rest.pop(0)) if rest and not rest[0].startswith("-") else BOX
    check_there(model)
    said = {each.split("=")[0].replace("_", "-") for each in rest if each.startswith("--")}
    defaults = {**DEFAULTS, "--served-model-name": model.resolve().name}
    if SIMULATE in given:
        defaults["--load-format"] = "dummy"
    added = [each for option, value in defaults.items() if option not in said for each in (option, value)]
    return ["serve", str(model), *added, *rest]
