"""The command ``spyre``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand. What goes wrong is said in one sentence, and the exit code is 1."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.command(arguments)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"spyre: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spyre", description="Tools around the spyre card.")
    _add_sdsc(parser.add_subparsers(required=True, metavar="COMMAND"))
    return parser


def _add_sdsc(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sdsc = commands.add_parser("sdsc", help="SuperDSC files: run, check, show")
    actions = sdsc.add_subparsers(required=True, metavar="ACTION")

    run = actions.add_parser("run", help="verify, compile and run one file alone on the card")
    run.add_argument("file", type=Path)
    run.add_argument("--input", type=Path, nargs="+", action="extend", default=[], help=".npy, in the op's order")
    run.add_argument("--seed", type=int, default=0, help="of the random inputs, where none are given")
    run.add_argument("--output", type=Path, help="where to write the result, as .npy")
    run.set_defaults(command=_run)

    check = actions.add_parser("check", help="verify files")
    check.add_argument("files", type=Path, nargs="+")
    check.set_defaults(command=_check)

    show = actions.add_parser("show", help="print a file readably")
    show.add_argument("file", type=Path)
    show.set_defaults(command=_show)


def _run(arguments: argparse.Namespace) -> None:
    import numpy as np

    from .backend import single

    op = single.load(arguments.file.read_text())
    given = [np.load(path, allow_pickle=False) for path in arguments.input]
    result = single.run(op, given or single.random_inputs(op, arguments.seed))
    print(op)
    print(f"modelled time {result.microseconds:.3f} us")
    print(_summary(result.output))
    if arguments.output:
        np.save(arguments.output, result.output)


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
            superdsc.verify(superdsc.loads(path.read_text()))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        print(f"{path}: ok")


def _show(arguments: argparse.Namespace) -> None:
    from .ir import superdsc

    dsc = superdsc.loads(arguments.file.read_text())
    superdsc.verify(dsc)
    print(superdsc.show(dsc))


if __name__ == "__main__":
    sys.exit(main())
