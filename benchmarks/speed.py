"""How fast the card runs here: every case against PyTorch on the CPU, and against what this machine can do at all.

``python benchmarks/speed.py [CASE ...]`` measures; every case is a process of its own, two threads on both sides. A run
of all cases writes RESULTS.md.
"""

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

THREADS = 2
THREAD_SETTINGS = {name: str(THREADS) for name in ("SPYRE_THREADS", "OMP_NUM_THREADS")}
PAGE = Path(__file__).resolve().parent / "RESULTS.md"

TITLE = """# How fast it is

Written by `make bench` (`python benchmarks/speed.py`). {machine}; {threads} threads on both sides, the card
with its own numerics (SEN169 halves), each case in a process of its own, sides in turn, the best of many calls.

*ratio*: how many times as fast as the other side, or as small. *limit*: the bytes of arguments and results, each
once, at the speed of memory, or the arithmetic at the peak of fp32 multiply-adds, whichever takes longer; both
measured in the process of the case. *time / limit*: what is left above it. *others*: the share of the machine that
other processes had meanwhile; where it is above {quiet:.0%} in every attempt the row says *disturbed*, and its ratio
is not to be trusted in either direction. Compile time is the first call's without the second one's.

"""


def in_this_process(case: str) -> None:
    import torch
    from _cases import CASES

    torch.set_num_threads(THREADS)
    for row in CASES[case]():
        print(json.dumps(asdict(row)))


def measured(case: str):
    from _timing import Row

    command = [sys.executable, __file__, "--in-this-process", case]
    done = subprocess.run(command, env={**os.environ, **THREAD_SETTINGS}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"{case}: failed", file=sys.stderr)
    return [Row(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith('{"case"')]


def machine() -> str:
    import torch

    simd = torch.spyre.get_device_properties().simd
    return (
        f"{os.cpu_count()} cores ({platform.machine()}, the card's instruction set {simd}), PyTorch {torch.__version__}"
    )


def main(chosen: list[str]) -> None:
    from _cases import CASES
    from _timing import QUIET, line, markdown

    unknown = [name for name in chosen if name not in CASES]
    if unknown:
        sys.exit(f"there is no case {unknown[0]!r}; there are {', '.join(CASES)}")
    rows = []
    for case in chosen or CASES:
        for row in measured(case):
            print(line(row), flush=True)
            rows.append(row)
    disturbed = sum(not row.valid for row in rows)
    print(f"{sum(row.met for row in rows)} of {len(rows)} as asked; {disturbed} disturbed by other processes")
    if not chosen:
        PAGE.write_text(TITLE.format(machine=machine(), threads=THREADS, quiet=QUIET) + markdown(rows) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-this-process"]:
        in_this_process(sys.argv[2])
    else:
        main(sys.argv[1:])
