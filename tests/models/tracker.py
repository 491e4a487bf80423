"""Follows whole models: ``python -m tests.models.tracker [KEY ...]`` measures and writes docs/models.md.

Every measurement is a process of its own; one that fails or hangs is a line of the page and stops no other. With names,
only those are measured and shown; the page is written by a whole run only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import page
from .architectures import ORDER
from .sweep import page as sweep

ENOUGH_SECONDS = 1800
AT_ONCE = 2  # what is measured does not depend on how busy this machine is: time is modelled
MODES = {"run": "run", "timing": "timing"}  # what is measured: the card's mode for it


def measure(key: str, what: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.models.measure", key, what]
    environment = {**os.environ, "SPYRE_CARD": MODES[what]}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=ENOUGH_SECONDS)
    except subprocess.TimeoutExpired:
        return {"failed": f"took longer than {ENOUGH_SECONDS // 60} minutes"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        how = f"killed by signal {-done.returncode}: " if done.returncode < 0 else ""
        return {"failed": how + next((line for line in reversed(lines) if ": " in line), lines[-1])[:300]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="KEY", help=f"of {', '.join(ORDER)}; all if none is given")
    parser.add_argument("--only", choices=MODES, help="run: compare the tiny models; timing: time the full ones")
    parser.add_argument("--counts", type=Path, help="where to write how many models are as they should be")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.keys) - set(ORDER))
    if unknown:
        parser.error(f"no descriptor of {', '.join(unknown)}")
    keys, whats = arguments.keys or ORDER, [arguments.only] if arguments.only else list(MODES)
    found: dict[str, dict[str, Any]] = {key: {} for key in keys}
    todo = [(key, what) for key in keys for what in whats]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for (key, what), result in zip(todo, pool.map(lambda one: measure(*one), todo), strict=True):
            found[key][what] = result
            print(key, what, json.dumps(result), flush=True)
    text = page.text(found)
    if arguments.keys or arguments.only:
        print(text)
    else:
        page.PATH.write_text(text + sweep.kept())
    failed = sum(bool(page.problems(key, whats)) for key, whats in found.items())
    if arguments.counts is not None:
        arguments.counts.write_text(json.dumps({"passed": len(found) - failed, "failed": failed, "skipped": 0}))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
