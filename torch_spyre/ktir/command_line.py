"""``spyre ktir`` and ``spyre launch``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ir.ktir.source import KtirError, LaunchError, read

if TYPE_CHECKING:
    from .module import Module


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, what in (
        ("run", "run a function on arrays"),
        ("time", "how long the card takes, by the modelled clock"),
        ("cost", "bytes of each array, cycles of each unit, and what bounds a function"),
    ):
        action = actions.add_parser(name, help=what)
        action.add_argument("file", type=Path)
        action.add_argument("--function", help="which, where the file has several")
        action.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help=_VALUES)
        action.add_argument("--at", action="append", default=[], metavar="ADDRESS=VALUE", help="memory at an address")
        action.add_argument("--seed", type=int, default=0, help="of random values")
        if name == "run":
            action.add_argument(
                "--out", action="append", default=[], metavar="NAME=FILE", help="where results go, as .npy"
            )
        action.add_argument("--trace", type=Path, help="where to write the timeline of every core, as JSON")
        action.set_defaults(command={"run": _run, "time": _time, "cost": _cost}[name])
    check = actions.add_parser("check", help="verify files, and compile their functions")
    check.add_argument("files", type=Path, nargs="+")
    check.set_defaults(command=_check)
    print_ = actions.add_parser("print", help="print a file as KTIR")
    print_.add_argument("file", type=Path)
    print_.add_argument("--generic", action="store_true", help="every op in MLIR's generic form")
    print_.set_defaults(command=_print)


_VALUES = "a .npy file, a number, or random values such as 10x512@f16"


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="with launch_spec.json and programs")
    parser.add_argument("--bind", action="append", default=[], metavar="SYMBOL=NUMBER", help="the value of a symbol")
    parser.add_argument("-i", "--input", action="append", default=[], metavar="NAME=VALUE", help=_VALUES)
    parser.add_argument("-o", "--output", action="append", default=[], metavar="NAME=FILE", help="where a result goes")
    parser.add_argument("--seed", type=int, default=0, help="of random values")
    parser.set_defaults(command=_launch)


def _arrays(arguments: argparse.Namespace) -> tuple[Module, str, dict[str, Any]]:
    from . import given
    from .module import load

    module = load(arguments.file)
    names = list(module.functions)
    if not arguments.function and len(names) > 1:
        raise KtirError(f"{arguments.file} has {len(names)} functions: choose one with --function")
    named: dict[str, Any] = {}
    for i, (name, text) in enumerate(given.pairs(arguments.arg).items()):
        named[name] = given.value(text, arguments.seed + i)
    memory = {}
    for i, (address, text) in enumerate(given.pairs(arguments.at).items()):
        if not address.isdigit():
            raise KtirError(f"--at {address}: an address is a number of elements")
        memory[int(address)] = given.value(text, arguments.seed + 1000 + i)
    return module, arguments.function or names[0], {"memory": memory, **named} if memory else named


def _run(arguments: argparse.Namespace) -> None:
    from . import given

    module, function, arrays = _arrays(arguments)
    results = module.run(function, **arrays)
    outputs = given.pairs(arguments.out)
    for name, result in results.items():
        print(given.summary(str(name), result))
        if str(name) in outputs:
            given.save(Path(outputs.pop(str(name))), result)
    if outputs:
        raise KtirError(f"there is no result {next(iter(outputs))}; there are {', '.join(map(str, results))}")
    _time_of(arguments, module, function, arrays)


def _time(arguments: argparse.Namespace) -> None:
    _time_of(arguments, *_arrays(arguments))


def _time_of(arguments: argparse.Namespace, module: Module, function: str, arrays: dict[str, Any]) -> None:
    measured = module.measure(function, **arrays)
    print(f"modelled time {measured['picoseconds'] / 1e6:.3f} us")
    _write_trace(arguments, function, measured)


def _cost(arguments: argparse.Namespace) -> None:
    from . import cost

    module, function, arrays = _arrays(arguments)
    measured = module.measure(function, **arrays)
    print(cost.report(function, measured))
    _write_trace(arguments, function, measured)


def _write_trace(arguments: argparse.Namespace, function: str, measured: dict[str, Any]) -> None:
    from . import cost

    if arguments.trace:
        arguments.trace.write_text(cost.trace(function, measured), encoding="utf-8")


def _check(arguments: argparse.Namespace) -> None:
    from .module import load

    for path in arguments.files:
        module = load(path)
        for function in module.functions.values():
            _ = function.compiled
        print(f"{path}: ok, {len(module.functions)} functions")


def _print(arguments: argparse.Namespace) -> None:
    from ..ir.ktir.parser import parse
    from ..ir.ktir.printer import show
    from ..ir.ktir.verify import verify

    module = parse(read(arguments.file), str(arguments.file))
    verify(module)
    print(show(module, arguments.generic), end="")


def _launch(arguments: argparse.Namespace) -> None:
    from . import given, launch

    spec = launch.read(arguments.folder)
    bound = {}
    for name, text in given.pairs(arguments.bind).items():
        if not text.isdigit():
            raise LaunchError(f"--bind {name}={text}: a symbol is a whole number")
        bound[name] = int(text)
    inputs = {
        name: given.value(text, arguments.seed + i)
        for i, (name, text) in enumerate(given.pairs(arguments.input).items())
    }
    outputs = given.pairs(arguments.output)
    results, microseconds = launch.run(spec, bound, inputs)
    for name, result in results.items():
        print(given.summary(name, result))
        if name in outputs:
            given.save(Path(outputs.pop(name)), result)
    if outputs:
        raise LaunchError(f"there is no output {next(iter(outputs))}; there are {', '.join(results)}")
    print(f"modelled time {microseconds:.3f} us")
