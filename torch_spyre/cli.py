"""The command ``spyre``."""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import __version__
from .diagnostics import command_line as diagnostics
from .diagnostics.errors import CaptureError
from .explain import command_line as explain
from .ir.ktir.source import LaunchError
from .ktir import command_line as ktir
from .models import run, timing
from .models.errors import ModelError
from .serving import bench
from .serving import command_line as serving
from .smi import command as smi


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand. What goes wrong is said in one sentence; ``--traceback`` says where.

    The exit code is 2 for models, captures and launch folders that cannot be run, 130 after Ctrl-C, and 1 for
    everything else.
    """
    arguments = _parser().parse_args(_joined(sys.argv[1:] if argv is None else argv))
    try:
        arguments.command(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads has enough; what is still buffered has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        if arguments.traceback:
            raise
        said = str(error) if isinstance(error, OSError | ValueError | RuntimeError) else f"{error!r}"
        print(f"spyre: {said}", file=sys.stderr)
        return 2 if isinstance(error, ModelError | CaptureError | LaunchError) else 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spyre", description="Tools around the spyre card.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the versions of this package and of torch")
    parser.add_argument("--traceback", action="store_true", help="when something goes wrong, show where")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run.add_arguments(commands.add_parser("run", help="a model on the card: generate, time, compare with the CPU"))
    _add_timing(commands)
    explain.add_arguments(commands.add_parser("explain", help="what the backend did with a model or a script, and why"))
    _add_sdsc(commands)
    ktir.add_arguments(commands.add_parser("ktir", help="programs of KTIR: run, check, time, cost, print"))
    ktir.add_launch_arguments(commands.add_parser("launch", help="a folder with launch_spec.json and programs of KTIR"))
    serving.add_arguments(commands.add_parser("serve", help="a model behind OpenAI's interface, by vLLM"))
    bench.add_arguments(commands.add_parser("serve-bench", help="a full-size model under load, in the card's time"))
    smi.add_arguments(commands.add_parser("smi", help="cards, memory, utilisation, power, processes: now, or by line"))
    diagnostics.add_arguments(commands.add_parser("replay", help="one captured kernel alone, on any number of cores"))
    return parser


class _Version(argparse.Action):
    """Looks for torch's version when it is asked: that takes as long as everything else that `spyre smi` needs."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib import metadata

        print(f"spyre {__version__}, torch {metadata.version('torch')}")
        parser.exit()


def _add_timing(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    timing.add_arguments(commands.add_parser("timing", help="a model by the modelled clock: how long, and why"))
    check = commands.add_parser("timing check", help="score the clock against kernels measured on real cards")
    check.add_argument("table", type=Path, nargs="?", help="another table than the package's own, in its form")
    check.add_argument("--family", action="append", help="only these families of kernels")
    check.add_argument("--worst", type=int, default=15, help="how many of the rows that are farthest off to show")
    check.add_argument("--json", type=Path, help="where to write every row with its modelled time")
    check.set_defaults(command=_check_timing)


def _joined(arguments: Sequence[str]) -> list[str]:
    """``timing check`` is a command of two words, where ``timing`` takes a model: argparse gets it as one. What follows
    ``serve`` is for another program, and not for argparse."""
    first = next((i for i, word in enumerate(arguments) if not word.startswith("-")), 0)
    if list(arguments[first : first + 2]) == ["timing", "check"]:
        return [*arguments[:first], "timing check", *arguments[first + 2 :]]
    if list(arguments[first : first + 1]) == ["serve"] and arguments[first + 1 : first + 2] not in (["-h"], ["--help"]):
        return [*arguments[: first + 1], "--", *arguments[first + 1 :]]
    return list(arguments)


def _check_timing(arguments: argparse.Namespace) -> None:
    os.environ["SPYRE_CARD"] = "timing"  # no values, no memory
    os.environ["SPYRE_KERNEL_CACHE"] = "0"
    from .progress import Progress
    from .timing import check, table

    rows = table.read(arguments.table or table.PATH)
    if arguments.family:
        rows = [row for row in rows if row.family in arguments.family]
    if not rows:
        raise ValueError("no rows to time; the families are " + ", ".join(check.BOUNDS))
    progress, done = Progress(), itertools.count()
    with progress.stage(f"timing {len(rows)} kernels"):
        timed = check.time_rows(rows, lambda row: progress.tick(next(done), len(rows)))
    print(check.report(timed, arguments.worst))
    if arguments.json:
        arguments.json.write_text(check.to_json(timed))
    if missed := check.failures(timed):
        raise ValueError("; ".join(missed))


def _add_sdsc(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sdsc = commands.add_parser("sdsc", help="SuperDSC files: run, check, show")
    actions = sdsc.add_subparsers(required=True, metavar="ACTION")

    alone = actions.add_parser("run", help="verify, compile and run one file alone on the card")
    alone.add_argument("file", type=Path)
    alone.add_argument("--input", type=Path, nargs="+", action="extend", default=[], help=".npy, in the op's order")
    alone.add_argument("--seed", type=int, default=0, help="of the random inputs, where none are given")
    alone.add_argument("--output", type=Path, help="where to write the result, as .npy")
    alone.set_defaults(command=_run_sdsc)

    check = actions.add_parser("check", help="verify files")
    check.add_argument("files", type=Path, nargs="+")
    check.set_defaults(command=_check)

    show = actions.add_parser("show", help="print a file readably")
    show.add_argument("file", type=Path)
    show.set_defaults(command=_show)


def _run_sdsc(arguments: argparse.Namespace) -> None:
    import numpy as np

    from .backend import single

    op = single.load(_text(arguments.file))
    given = [np.load(path, allow_pickle=False) for path in arguments.input]
    result = single.run(op, given or single.random_inputs(op, arguments.seed))
    print(op)
    print(f"modelled time {result.microseconds:.3f} us")
    print(_summary(result.output))
    if arguments.output:
        np.save(arguments.output, result.output)


def _text(path: Path) -> str:
    """Of a file that may be anything: no more is read than a SuperDSC can have."""
    from .ir import superdsc

    with path.open(encoding="utf-8") as file:
        return file.read(superdsc.MOST_TEXT + 1)


def _summary(output: object) -> str:
    import numpy as np

    values = np.asarray(output, dtype=np.float64)
    return (
        f"output {list(values.shape)}: min {values.min():g}, max {values.max():g}, mean {values.mean():g}"
        if values.size
        else f"output {list(values.shape)}"
    )


def _check(arguments: argparse.Namespace) -> None:
    from .ir import superdsc

    for path in arguments.files:
        try:
            superdsc.verify(superdsc.loads(_text(path)))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        print(f"{path}: ok")


def _show(arguments: argparse.Namespace) -> None:
    from .ir import superdsc

    dsc = superdsc.loads(_text(arguments.file))
    superdsc.verify(dsc)
    print(superdsc.show(dsc))


if __name__ == "__main__":
    sys.exit(main())
