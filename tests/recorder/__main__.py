"""Records bits and modelled times of kernels, and compares them with a recording made earlier.

    python -m tests.recorder record before.json
    python -m tests.recorder compare before.json

For changes that are to leave both as they are. ``--only PART`` takes the cases whose names contain it.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.execute import digest
from tests.recorder.cases import all_cases

Recording = dict[str, dict[str, Any]]  # by the name of the case: "bits" and "ms", or "error"


def record(only: str = "") -> Recording:
    """One case that fails does not end the others: how it fails is what it does."""
    found: Recording = {}
    for case in all_cases():
        if only not in case.name:
            continue
        try:
            results, time = case.run()
            found[case.name] = {"bits": digest(results), "ms": time}
        except Exception as error:
            found[case.name] = {"error": type(error).__name__}
        if sys.stderr.isatty() or len(found) % 50 == 0:
            print(f"\r{len(found)} cases", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def differences(before: Recording, after: Recording) -> list[str]:
    """A line for each case that has other bits, another time, or is there only once."""
    lines = []
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            lines.append(f"{name}: only {'after' if name in after else 'before'}")
            continue
        for key in sorted({*before[name], *after[name]}):
            old, new = before[name].get(key), after[name].get(key)
            if old != new:
                lines.append(f"{name}: {key} was {_short(old)}, is {_short(new)}")
    return lines


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.recorder", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", metavar="PART", help="cases whose names contain this")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.spyre.set_downcast_warning(False)
    before: Recording = json.loads(arguments.file.read_text()) if arguments.command == "compare" else {}
    found = record(arguments.only)
    failed = sum("error" in each for each in found.values())
    if arguments.command == "record":
        arguments.file.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(found)} cases recorded, {failed} of them raise")
        return 0
    chosen = {name: each for name, each in before.items() if arguments.only in name}
    lines = differences(chosen, found)
    print("\n".join([*lines, f"{len(found)} cases, {len(lines)} differences"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
