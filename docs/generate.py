"""Pages of the reference that follow from the source: ``python docs/generate.py`` writes them, a test compares them."""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from torch_spyre import cli
from torch_spyre.card import description
from torch_spyre.ops import table
from torch_spyre.testing import __main__ as testing

ROOT = Path(__file__).parents[1]
WRITTEN = "*Written by `docs/generate.py` from {source}; a test compares them.*"


def command_line() -> str:
    lines = ["# Command line", "", WRITTEN.format(source="the parsers"), ""]
    for command, said, each in [*_commands(cli._parser()), *_commands(testing.parser())]:
        lines += [f"## {command}", "", _sentence(said), "", "```console"]
        lines += [_usage(each, command), "```", ""]
        rows = [action for action in each._actions if not isinstance(action, argparse._SubParsersAction | _HELP)]
        if rows:
            lines += ["| argument | meaning |", "|---|---|", *map(_argument, rows), ""]
    return "\n".join(lines)


_HELP = argparse._HelpAction


def _commands(
    parser: argparse.ArgumentParser, said: str = "", command: str = ""
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Every command, what is said of it, and its parser."""
    command = command or parser.prog
    yield command, parser.description or said, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            for name, each in action.choices.items():
                yield from _commands(each, helps.get(name, ""), f"{command} {name}")


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""


def _usage(parser: argparse.ArgumentParser, command: str) -> str:
    """One line, whatever the width of the terminal."""
    positional = [each for each in parser._actions if not each.option_strings]
    options = " [OPTIONS]" if len(parser._actions) > len(positional) + 1 else ""
    return command + options + "".join(f" {_placeholder(each)}" for each in positional)


def _placeholder(action: argparse.Action) -> str:
    name = action.metavar or (
        action.dest.upper() if not action.choices else "{" + ",".join(map(str, action.choices)) + "}"
    )
    name = name[0] if isinstance(name, tuple) else name
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ..."}.get(str(action.nargs), str(name))


def _argument(action: argparse.Action) -> str:
    name = ", ".join(action.option_strings)
    if not name or action.nargs != 0:
        name = f"{name} {_placeholder(action)}".strip()
    meaning = action.help or ""
    if "%" in meaning:
        meaning %= {"default": action.default, "prog": "spyre", "type": action.type}
    if action.default not in (None, False, [], argparse.SUPPRESS) and "default" not in meaning:
        meaning += f" (default {action.default})"
    return f"| `{name}` | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def hardware() -> str:
    lines = ["# Hardware description", "", WRITTEN.format(source="`torch_spyre/card/spyre.toml`"), ""]
    lines += [
        "Planner and clock read these constants, and no number of the hardware is written anywhere else.",
        "*public*: a published description of the card; *fit*: fitted to published kernel times; *measured* and",
        "*published*: figures of others; *derived*: from other rows. [Other cards](../timing.md#other-cards) are",
        "files that say what differs.",
        "",
    ]
    heading = False
    for line in description.OWN.read_text().splitlines():
        if found := re.fullmatch(r"(\w+) *= *(\S+) *# *(.*)", line):
            if not heading:
                lines += ["| constant | value | meaning |", "|---|---|---|"]
                heading = True
            lines.append(f"| `{found[1]}` | {found[2]} | {_cell(found[3])} |")
    return "\n".join([*lines, ""])


def device_ops() -> str:
    lines = ["# Operations of the card", "", WRITTEN.format(source="the op table, `torch_spyre/ops/table.py`"), ""]
    lines += [
        "What a step of a card program can be.",
        "[Supported operations](../supported_operations.md) lists the ops of PyTorch.",
        "",
    ]
    lines += ["| operation | kind | unit | inputs | cost |", "|---|---|---|---|---|"]
    for op in table.OPS.values():
        lines.append(f"| `{op.name}` | {op.kind} | {op.unit} | {op.arity} | {op.cost} |")
    return "\n".join([*lines, ""])


def examples() -> str:
    lines = ["# Examples by task", "", WRITTEN.format(source="their docstrings"), ""]
    lines += [
        "Each is one file that runs by itself, as `python examples/NAME.py`, and is run by a test.",
        "",
        "| example | task |",
        "|---|---|",
    ]
    for path in sorted((ROOT / "examples").glob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        first = " ".join(said.split("\n\n")[0].split())
        lines.append(f"| [{path.name}](../../examples/{path.name}) | {_cell(first)} |")
    lines += ["", "## Notebooks", "", "Run from their first cell to the last by a test at night.", ""]
    lines += ["| notebook | |", "|---|---|"]
    for path in sorted((ROOT / "examples/notebooks").glob("*.ipynb")):
        title, _, said = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]).partition("\n")
        about = f"{title.lstrip('# ')}: {' '.join(said.split())}"
        lines.append(f"| [{path.name}](../../examples/notebooks/{path.name}) | {_cell(about)} |")
    return "\n".join([*lines, ""])


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/command_line.md": command_line,
    "docs/reference/hardware.md": hardware,
    "docs/reference/device_ops.md": device_ops,
    "docs/getting_started/examples.md": examples,
}

if __name__ == "__main__":
    for page, text in PAGES.items():
        (ROOT / page).write_text(text())
