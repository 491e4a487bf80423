"""``python -m torch_spyre.testing run CONFIG.yaml --pytorch-root DIR``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from . import runner
from .configuration import Configuration, ConfigurationError, load


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m torch_spyre.testing", description="PyTorch's own tests on the card, by a configuration."
    )
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the files of a configuration, and say how it went")
    run.add_argument("configurations", metavar="CONFIG", type=Path, nargs="+", help="YAML in the public form")
    run.add_argument("--pytorch-root", type=Path, metavar="DIR", help="PyTorch's repository: TORCH_ROOT in paths")
    run.add_argument(
        "--device-root", type=Path, metavar="DIR", help="TORCH_DEVICE_ROOT in paths; default: this project"
    )
    run.add_argument(
        "-m", dest="marked", default="", metavar="MARKS", help="only tests with these marks, as in pytest: op__add"
    )
    run.add_argument("-k", dest="named", default="", metavar="NAMES", help="only tests with these names, as in pytest")
    run.add_argument("--parallel", type=int, default=0, metavar="N", help="processes for a file; needs pytest-xdist")
    run.add_argument("--shard", default="1/1", metavar="I/N", help="one of N parts of the tests, for N machines")
    run.add_argument("--timeout", type=float, default=0, metavar="SECONDS", help="of a test; needs pytest-timeout")
    run.add_argument("--collect-only", action="store_true", help="show what would run")
    run.add_argument("--junit-xml", type=Path, metavar="FILE", help="where to write every test, as JUnit does")
    run.add_argument("--json", type=Path, metavar="FILE", help="where to write counts and failures")
    run.add_argument("pytest", nargs="*", metavar="-- ARGUMENT", help="further arguments of pytest")
    run.set_defaults(command=_run)
    check = commands.add_parser("check", help="read configurations, and say what is wrong or unknown in them")
    check.add_argument("configurations", metavar="CONFIG", type=Path, nargs="+")
    check.set_defaults(command=_check)
    schema = commands.add_parser("schema", help="print the JSON schema of configurations, for editors")
    schema.set_defaults(command=_schema)
    return made


def _run(arguments: argparse.Namespace) -> int:
    options = runner.Options(
        arguments.pytorch_root,
        arguments.device_root,
        arguments.marked,
        arguments.named,
        arguments.shard,
        arguments.parallel,
        arguments.timeout,
        arguments.collect_only,
        tuple(arguments.pytest),
    )
    results = [result for path in arguments.configurations for result in runner.run(path, options)]
    if arguments.collect_only:
        return 0
    print(runner.text(results))
    if arguments.junit_xml:
        arguments.junit_xml.write_text(runner.as_junit(results), encoding="utf-8")
    if arguments.json:
        arguments.json.write_text(runner.as_json(results), encoding="utf-8")
    return int(not all(each.ok for each in results))


def _check(arguments: argparse.Namespace) -> int:
    for path in arguments.configurations:
        found = load(path)
        unknown = list(found.unknown())
        print(
            f"{path}: {len(found.test_suite_config.files)} files" + "".join(f"\n  unknown: {each}" for each in unknown)
        )
    return 0


def _schema(arguments: argparse.Namespace) -> int:
    print(json.dumps(Configuration.model_json_schema(by_alias=True), indent=1))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.command(arguments))
    except ConfigurationError as error:
        print(f"torch_spyre.testing: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
