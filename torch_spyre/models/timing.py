"""``spyre timing``: how long a model takes on the card, prompt and token, and where the time goes."""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..progress import Progress
from ..units import count, size
from . import host_memory, presets
from .command_line import (
    add_trust,
    compiler_at_work,
    ended_by_a_signal,
    failures_of_the_model,
    import_models,
    need_transformers,
    refusals_of_the_card,
    started_card,
    without_warnings,
)
from .errors import ModelError

if TYPE_CHECKING:
    from .loading import Source
    from .phases import Phase
    from .tensor_parallel import Place

PREFILL = 512  # tokens, where none are named
DTYPES = ("float16", "bfloat16", "float32")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="PRESET|MODEL", help="a preset's name, or a Hugging Face directory")
    parser.add_argument("--prefill", type=int, metavar="N", help=f"time a prompt of N tokens (default: {PREFILL})")
    parser.add_argument("--decode", action="store_true", help="time a token; without --prefill and --decode: both")
    parser.add_argument("--context", type=int, metavar="N", help="tokens before the one written (default: the prompt)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences at a time")
    parser.add_argument(
        "--cards", type=int, default=1, metavar="N", help="that share the model: tensor parallel (default: 1)"
    )
    parser.add_argument("--layers", type=int, metavar="N", help="of a preset: only the first N layers")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of the weights on the card")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="how many of the costliest ops to show")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all of it, every op included")
    add_trust(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> None:
    check(arguments)
    progress = Progress()
    start(progress)
    from . import loading, timing_report

    with ended_by_a_signal(), without_warnings(), failures_of_the_model(), refusals_of_the_card():
        source = source_of(arguments)
        check_room(arguments, source)
        whole = loading.outline(source)
        phases = _time(arguments, source, progress, whole)
        print(f"{'model':<11} {source.name}, {count(sum(each.numel() for each in whole.parameters()))} parameters")
        if arguments.cards > 1:
            print(f"{'cards':<11} {arguments.cards}, tensor parallel; what follows is of each")
        for phase in phases:
            print(timing_report.text(phase, arguments.top) + "\n")
        print(f"{'memory':<11} {size(host_memory.peak())} of this machine")
        if arguments.json:
            found = {"model": source.name, "cards": arguments.cards, "peak_memory_bytes": host_memory.peak()}
            arguments.json.write_text(
                json.dumps(found | {"phases": [timing_report.as_dict(phase) for phase in phases]})
            )


def start(progress: Progress) -> None:
    """Starts the card in timing mode and imports what models need."""
    os.environ["SPYRE_CARD"] = "timing"
    with progress.stage("starting"):
        mode = started_card()
        import_models()
    if mode != "timing":
        raise ModelError(f"the card of this process has started in mode {mode} and cannot change it")


def _time(arguments: argparse.Namespace, source: Source, progress: Progress, whole: Any) -> list[Phase]:
    import torch

    from . import floor, loading
    from .phases import time_decode, time_prefill

    phases = []
    dtype = getattr(torch, arguments.dtype)
    with _cards(arguments.cards) as place:
        with progress.stage("laying out the model"):
            model = loading.conjure(source, dtype, place)
        at_work = compiler_at_work(threading.get_ident())
        if prefill_of(arguments):
            with progress.stage("compiling for the prompt", at_work):
                phases.append(time_prefill(model, prefill_of(arguments), arguments.batch))
        if context_of(arguments):
            with progress.stage("compiling for a token", at_work):
                phases.append(time_decode(model, context_of(arguments), arguments.batch))
    return [
        replace(
            phase,
            cards=arguments.cards,
            floor=floor.milliseconds(whole, phase.tokens, phase.context, phase.batch, dtype) / arguments.cards,
        )
        for phase in phases
    ]


@contextmanager
def _cards(count: int) -> Iterator[Place | None]:
    """So many cards, all of them this process's. The first has most where parts differ, and the others wait for it."""
    if count == 1:
        yield None
        return
    from ..distributed import lone_world
    from .tensor_parallel import place_in_world

    with lone_world(count):
        yield place_in_world()


def prefill_of(arguments: argparse.Namespace) -> int:
    """Tokens of the prompt to time; 0: none."""
    return arguments.prefill or (0 if arguments.decode else PREFILL)


def context_of(arguments: argparse.Namespace) -> int:
    """Tokens before the one whose decoding is timed; 0: none is."""
    if arguments.prefill and not arguments.decode and not arguments.context:
        return 0
    return arguments.context or arguments.prefill or PREFILL


def source_of(arguments: argparse.Namespace) -> Source:
    from . import loading

    if arguments.model in presets.table():
        return loading.from_preset(arguments.model, arguments.layers)
    if arguments.layers is not None:
        raise ModelError("--layers is for presets: the layers of a model on disk depend on each other")
    return loading.from_directory(Path(arguments.model), weights_wanted=False, trusted=arguments.trust_remote_code)


def check(arguments: argparse.Namespace) -> None:
    """Refuses what cannot be, before anything is imported."""
    for option in ("prefill", "context", "batch", "cards", "layers", "top"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise ModelError(f"--{option} {value}: it has to be at least 1")
    if arguments.model not in presets.table() and not Path(arguments.model).is_dir():
        raise ModelError(
            f"{arguments.model!r} is neither a preset nor a directory; presets are {', '.join(presets.causal())}"
        )
    need_transformers("spyre timing")


def check_room(arguments: argparse.Namespace, source: Source) -> None:
    prompt, before = prefill_of(arguments), context_of(arguments)
    for option, needed in (("prefill", prompt), ("context", before and before + 1)):
        if needed > source.context:
            raise ModelError(f"{source.name} has a context of {source.context} tokens, and --{option} needs {needed}")
