"""How fast the card runs here: every case against PyTorch on the CPU, and against what this machine can do at all.

``python benchmarks/speed.py [CASE ...]`` measures; every case is a process of its own, two threads on both sides.
RESULTS.md is written anew from what every case showed when it was last measured, and says at which commit that was.
"""

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from _timing import QUIET, Row, line, markdown

THREADS = 2
THREAD_SETTINGS = {name: str(THREADS) for name in ("SPYRE_THREADS", "OMP_NUM_THREADS")}
HERE = Path(__file__).resolve().parent
PAGE = HERE / "RESULTS.md"
KEPT = HERE.parent / "build" / "speed"  # rows of each case, as JSON

TITLE = """# How fast it is

Written by `make bench` (`python benchmarks/speed.py`). {machine}; {threads} threads on both sides, the card
with its own numerics (SEN169 halves), each case in a process of its own, sides in turn, the best of many calls.

*ratio*: how many times as fast as the other side, or as small. *limit*: the bytes of arguments and results, each
once, at the speed of memory, or the arithmetic at the peak of fp32 multiply-adds, whichever takes longer; both
measured in the process of the case. *time / limit*: what is left above it. *others*: the share of the machine that
other processes had meanwhile; where it is above {quiet:.0%} in every attempt the row says *disturbed*, and its ratio
is not to be trusted in either direction. Compile time is the first call's without the second one's.
*commit*: what was measured; a plus stands for changes on top of it.

"""


def in_this_process(case: str) -> None:
    import torch
    from _cases import CASES

    torch.set_num_threads(THREADS)
    for row in CASES[case]():
        print(json.dumps(asdict(row)))


def measure(case: str) -> bool:
    """Keeps the rows of a case; one that fails keeps none, so that no older figure stands for it."""
    kept = KEPT / f"{case}.json"
    kept.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--in-this-process", case]
    done = subprocess.run(command, env={**os.environ, **THREAD_SETTINGS}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"{case}: failed", file=sys.stderr)
        return False
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps([{**row, "commit": commit()} for row in rows]))
    return True


def kept_rows(case: str) -> list[Row]:
    kept = KEPT / f"{case}.json"
    return [Row(**row) for row in json.loads(kept.read_text())] if kept.is_file() else []


def commit() -> str:
    command = ["git", "-C", str(HERE), "describe", "--always", "--exclude=*", "--dirty=+"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "none"


def machine() -> str:
    import torch

    simd = torch.spyre.get_device_properties().simd
    return (
        f"{os.cpu_count()} cores ({platform.machine()}, the card's instruction set {simd}), PyTorch {torch.__version__}"
    )


def main(chosen: list[str]) -> None:
    from _cases import CASES

    unknown = [name for name in chosen if name not in CASES]
    if unknown:
        sys.exit(f"there is no case {unknown[0]!r}; there are {', '.join(CASES)}")
    measured, failed = [], False
    for case in chosen or CASES:
        failed |= not measure(case)
        for row in kept_rows(case):
            print(line(row), flush=True)
            measured.append(row)
    disturbed = sum(not row.valid for row in measured)
    print(f"{sum(row.met for row in measured)} of {len(measured)} as asked; {disturbed} disturbed by other processes")
    write_page(list(CASES))
    sys.exit(failed)


def write_page(cases: list[str]) -> None:
    rows = {case: kept_rows(case) for case in cases}
    text = TITLE.format(machine=machine(), threads=THREADS, quiet=QUIET)
    text += markdown(row for found in rows.values() for row in found) + "\n"
    if missing := [case for case, found in rows.items() if not found]:
        text += f"\nNot measured, or failed: {', '.join(missing)}.\n"
    PAGE.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-this-process"]:
        in_this_process(sys.argv[2])
    else:
        main(sys.argv[1:])
