"""The arguments of ``spyre replay``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a capture (torch.spyre.capture), or a diagnostic report with a kernel")
    parser.add_argument("--cores", type=int, metavar="N", help="compile for so many cores; default: as captured")
    parser.add_argument("--mode", choices=("run", "timing", "strict"), help="of the card")
    parser.add_argument("--planning", choices=("together", "op_by_op"), help="default: as captured")
    parser.add_argument("--as-captured", action="store_true", help="the card program in the file, not compiled again")
    parser.add_argument("--seed", type=int, default=0, help="of random inputs, where none were captured (0)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run so often, and compare the runs")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="steps to show (10)")
    parser.add_argument("--compare", action="store_true", help="fail if results are not those that were captured")
    parser.set_defaults(command=_replay)


def _replay(arguments: argparse.Namespace) -> None:
    if arguments.mode:
        os.environ["SPYRE_CARD"] = arguments.mode
    from .captures import load
    from .errors import CaptureError
    from .replay import Options, replay

    options = Options(
        arguments.cores, arguments.planning, arguments.as_captured, arguments.seed, max(arguments.repeat, 1)
    )
    replayed = replay(load(arguments.file), options)
    print(replayed.report(max(arguments.top, 0)))
    if not replayed.stable:
        raise RuntimeError("the runs gave different bits")
    if arguments.compare and replayed.differences is None:
        raise CaptureError("there is nothing to compare with: the capture has no values, or the mode computes none")
    if arguments.compare and replayed.differences:
        raise RuntimeError("the results are not those that were captured")
