"""``python -m tests.mutation``: damaged inputs of everything that is parsed, in both modes of the card."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.mutation import cases, driver
from tests.shards import parse_shard


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Run damaged inputs on the card.")
    parser.add_argument("--count", type=int, default=2000, help="cases (2000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    parser.add_argument("--seed", type=int, default=0, help="of the damages (0)")
    parser.add_argument("--shard", type=parse_shard, default=(1, 1), metavar="I/N", help="part I of N of the cases")
    parser.add_argument("--kind", choices=sorted(cases.SHARES), default="", help="only inputs of this kind")
    parser.add_argument("--jobs", type=int, default=1, help="pairs of processes (1)")
    parser.add_argument("--out", type=Path, default=driver.OUT, help=f"where failing inputs go ({driver.OUT})")
    parser.add_argument("--json", type=Path, help="where to write how many passed and failed")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run a saved input again, alone")
    options = parser.parse_args()
    if options.replay is not None:
        failure = driver.replay(cases.load(options.replay))
        print("no failure" if failure is None else f"{failure.mode}: {failure.kind}: {failure.what}")
        return 0 if failure is None else 1
    part, parts = options.shard
    numbers = range(options.first + part - 1, options.first + options.count, parts)
    summary = driver.run(numbers, options.seed, options.kind, options.jobs, _show)
    print(file=sys.stderr)
    for line in driver.report(summary, options.out):
        print(line)
    print(summary)
    if options.json is not None:
        options.json.write_text(summary.to_json())
    return 1 if summary.failures else 0


def _show(summary: driver.Summary, failure: driver.Failure | None) -> None:
    if failure is not None:
        print(f"\rcase {failure.case.number}: {failure.cause()}", file=sys.stderr)
    if summary.count % 20 == 0:
        line = f"{summary.count} cases, {summary.seconds:.0f} s, {len(summary.failures)} failures"
        print(f"\r{line}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
