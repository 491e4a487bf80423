"""From a row of a profile back to the program: the sidecar file that kernels are looked up in.

``INDUCTOR_PROVENANCE=1`` writes ``spyre_provenance.json`` when the process ends, ``TORCH_SPYRE_PROVENANCE_PATH`` names
another file, or none where it is empty. ``python -m torch_spyre.provenance EVENT FILE`` says where an event comes from.
"""

from __future__ import annotations

import argparse
import atexit
import json
import linecache
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .constants import PROVENANCE_FILE
from .ir import provenance as identity

if TYPE_CHECKING:
    from .execution.kernel import Prepared

VERSION = 1
MOST_BYTES = 256 << 20  # of a sidecar that is read
MOST_SOURCE = 16 << 20  # bytes of a source file that a line is kept of
MOST_LINE = 500  # characters of a line
_SOURCE = re.compile(r'File "(.*)", line (\d{1,9})\b')


class InvalidSidecar(ValueError):
    """A file that is no sidecar, or lacks what was looked for."""


class Sidecar:
    """The kernels of a process, by key: what they are, where in graphs they occur, and what each OpSpec comes from."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {
            "version": VERSION,
            "kernelIdentities": {},
            "kernelOccurrences": [],
            "specHandleBinding": {},
        }

    def note(self, prepared: Prepared) -> None:
        """Adds a kernel, once."""
        key, specs = prepared.code["provenance"]["key"], prepared.code["provenance"]["specs"]
        if key in self.data["kernelIdentities"]:
            return
        programs = [each["program"]["steps"] for each in prepared.code["steps"] if each["type"] == "Compute"]
        self.data["kernelIdentities"][key] = {
            "name": prepared.code["name"],
            "specs": len(specs),
            "steps": [step["spec"] for steps in programs for step in steps],
        }
        for nodes in prepared.occurrences:
            self.data["kernelOccurrences"].append({"key": key, "nodes": [list(each) for each in nodes]})
        for number, text in enumerate(specs):
            facts = json.loads(text.rsplit("  with ", 1)[1])
            at, source = facts["loop_op"], facts["source"] or _calling_line()
            self.data["specHandleBinding"][f"{key}/{number}"] = {
                "source": source,
                "sourceText": line_of(source),
                "aten": facts["aten"],
                "loopOp": at,
                "nodes": [list(nodes[at]) for nodes in prepared.occurrences] if at >= 0 else [],
                "opSpec": text,
            }

    def write(self, path: str | os.PathLike[str]) -> None:
        """All of it or nothing: a reader never sees half a file."""
        target = Path(path)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with open(beside, "x") as file:  # never through a link that someone has put there
                json.dump(self.data, file)
            os.replace(beside, target)
        except FileExistsError:
            raise
        except OSError:
            beside.unlink(missing_ok=True)
            raise


def collect_into(path: str) -> None:
    """Collects kernels from now on, and writes them when the process ends."""
    from .execution import kernel

    sidecar, process = Sidecar(), os.getpid()
    kernel.observers.append(sidecar.note)

    def at_end() -> None:
        if os.getpid() != process:  # a forked child has the collection of its parent
            return
        try:
            sidecar.write(path)
        except OSError as error:
            print(f"torch_spyre: no provenance was written: {error}", file=sys.stderr)

    atexit.register(at_end)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A sidecar, checked. Raises InvalidSidecar."""
    try:
        with open(path, "rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise InvalidSidecar(f"{path}: more than {MOST_BYTES} bytes")
        data = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise error if isinstance(error, InvalidSidecar) else InvalidSidecar(f"{path}: {error}") from error
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise InvalidSidecar(f"{path}: this is no provenance of version {VERSION}")
    for field, kind in (("kernelIdentities", dict), ("kernelOccurrences", list), ("specHandleBinding", dict)):
        if not isinstance(data.get(field), kind):
            raise InvalidSidecar(f"{path}: {field} is missing or of the wrong kind")
    for key, kernel in data["kernelIdentities"].items():
        if not (isinstance(kernel, dict) and type(kernel.get("name")) is str and type(kernel.get("steps")) is list):
            raise InvalidSidecar(f"{path}: kernel {key[:99]} has no name or no steps")
    return data


def look_up(event: str, data: dict[str, Any]) -> dict[str, Any]:
    """What the step of an event comes from: ``source``, ``aten``, ``nodes``, ``opSpec``. Raises InvalidSidecar."""
    found = identity.parse_name(event)
    if found is None:
        raise InvalidSidecar(f"{event!r} is no kernel of the card: those are {identity.PREFIX}<ops>_<key>#<step>")
    key, step = found
    kernel = data["kernelIdentities"].get(key)
    if not isinstance(kernel, dict):
        raise InvalidSidecar(f"the sidecar has no kernel {key}")
    steps = kernel.get("steps")
    if not isinstance(steps, list) or not 0 <= max(step, 0) < len(steps):
        raise InvalidSidecar(f"kernel {key} has no step {step}")
    binding = data["specHandleBinding"].get(f"{key}/{steps[max(step, 0)]}")
    if not isinstance(binding, dict) or not all(isinstance(binding.get(each), str) for each in ("source", "opSpec")):
        raise InvalidSidecar(f"kernel {key}: its OpSpec {steps[max(step, 0)]} is missing")
    return binding


def _calling_line() -> str:
    """For kernels of eager ops, which belong to no line: where the first call is."""
    from .compare.source import calling_line

    line = calling_line()
    return f'File "{line.file}", line {line.number}, in {line.function}' if line.file else ""


def line_of(source: str) -> str:
    """The text of a line of the program, as it was when it was compiled."""
    at = _SOURCE.match(source)
    try:
        if at is None or not os.path.isfile(at[1]) or os.path.getsize(at[1]) > MOST_SOURCE:
            return ""
    except (OSError, ValueError):  # of a path that no file can have
        return ""
    return linecache.getline(at[1], int(at[2])).strip()[:MOST_LINE]


def text_of(binding: dict[str, Any]) -> str:
    """The line's text. It comes from the sidecar: files that one names are not opened."""
    text = binding.get("sourceText")
    return text[:MOST_LINE] if isinstance(text, str) else ""


def nodes_of(binding: dict[str, Any]) -> list[list[str]]:
    """The FX nodes of each occurrence: in the graph that was lowered, and in Dynamo's."""
    nodes = binding.get("nodes")
    found = nodes if isinstance(nodes, list) else []
    return [[str(name) for name in each] for each in found if isinstance(each, list) and each]


def told(event: str, binding: dict[str, Any]) -> str:
    """For a person: the line with its text, the op, the nodes and the OpSpec."""
    nodes = "; ".join(" from ".join(each) for each in nodes_of(binding)) or "unknown"
    rows = [
        ("event", event),
        ("source", binding["source"] or "unknown"),
        ("line", text_of(binding) or "unknown"),
        ("ATen", str(binding.get("aten", ""))),
        ("FX nodes", nodes),
    ]
    return "\n".join(
        [*(f"{name:<9} {_printable(said)}" for name, said in rows), "OpSpec", _printable(binding["opSpec"])]
    )


def _printable(text: str) -> str:
    """Without what would command a terminal."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_spyre.provenance", description="Where an event comes from.")
    parser.add_argument("event", help="the name of a kernel's row in a profile")
    parser.add_argument("file", type=Path, nargs="?", default=Path(PROVENANCE_FILE), help="the sidecar")
    arguments = parser.parse_args(argv)
    try:
        print(told(arguments.event, look_up(arguments.event, read(arguments.file))))
    except InvalidSidecar as error:
        print(f"provenance: {_printable(str(error))}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
