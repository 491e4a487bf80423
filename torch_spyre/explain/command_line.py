"""``spyre explain``: what the backend did with a model or a script, and what to change."""

from __future__ import annotations

import argparse
import runpy
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..models import presets
from ..models import timing as timing_command
from ..models.command_line import (
    compiler_at_work,
    ended_by_a_signal,
    failures_of_the_model,
    refusals_of_the_card,
    without_warnings,
)
from ..models.errors import ModelError
from ..progress import Progress

if TYPE_CHECKING:
    from .report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of ``spyre timing``, and where to write the report."""
    timing_command.add_arguments(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="where to write the explorer, one page for a browser")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="of a script; those with a dash after --")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> None:
    if arguments.model.endswith(".py") and arguments.model not in presets.table():
        reports = {"": _script(Path(arguments.model), arguments.arguments, arguments.html is not None)}
    elif arguments.arguments:
        raise ModelError(f"{arguments.model} is no script, and takes no arguments: {' '.join(arguments.arguments)}")
    else:
        reports = _model(arguments)
    for name, report in reports.items():
        report.show(arguments.top)
        if arguments.json:
            report.save(_named(arguments.json, name, len(reports)))
        if arguments.html:
            report.explore(_named(arguments.html, name, len(reports)))
    for report in reports.values():
        if not report.ok:
            said = report.data["failure"].splitlines()[0]
            raise KeyboardInterrupt if said.startswith(Interrupted.__name__) else ModelError(said)


class Interrupted(Exception):
    """Ctrl-C ends a script that runs for ever, and not its report."""


def _named(path: Path, name: str, reports: int) -> Path:
    """The file of one of several reports: ``out.prefill.html``."""
    return path.with_suffix(f".{name}{path.suffix}") if reports > 1 else path


def _script(path: Path, arguments: Sequence[str], with_superdsc: bool) -> Report:
    """Of a program as it is, run once from its beginning to its end."""
    if not path.is_file():
        raise ModelError(f"there is no file {path}")
    from .api import told

    def call() -> dict[str, Any]:
        try:
            return runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:  # what the script did before is still worth a report
            if end.code not in (None, 0):
                raise RuntimeError(f"{path} ended with exit code {end.code}") from end
            return {}
        except KeyboardInterrupt as stop:
            raise Interrupted(f"{path} was stopped with Ctrl-C") from stop

    before, sys.argv = sys.argv, [str(path), *arguments]
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        return told(path.name, call, with_superdsc, calls=1)
    finally:
        sys.argv = before
        sys.path.pop(0)


def _model(arguments: argparse.Namespace) -> dict[str, Report]:
    timing_command.check(arguments)
    progress = Progress()
    timing_command.start(progress)
    import torch

    from ..models import loading
    from ..models.phases import decode_call, prefill_call
    from .api import told

    reports: dict[str, Report] = {}
    with ended_by_a_signal(), without_warnings(), failures_of_the_model(), refusals_of_the_card():
        source = timing_command.source_of(arguments)
        timing_command.check_room(arguments, source)
        with progress.stage("laying out the model"):
            model = loading.conjure(source, getattr(torch, arguments.dtype))
        at_work = compiler_at_work(threading.get_ident())
        tokens, context = timing_command.prefill_of(arguments), timing_command.context_of(arguments)
        if tokens:
            with progress.stage("explaining the prompt", at_work):
                title = f"{source.name}: a prompt of {tokens} tokens"
                reports["prefill"] = told(title, prefill_call(model, tokens, arguments.batch), bool(arguments.html))
        if context:
            with progress.stage("explaining a token", at_work):
                title = f"{source.name}: a token after {context} others"
                reports["decode"] = told(title, decode_call(model, context, arguments.batch), bool(arguments.html))
    return reports
