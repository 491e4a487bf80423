"""``python -m tests.fuzz``: random programs on the card against the CPU."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.driver import Found, Summary, fuzz, shrunk


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Run random programs on the card.")
    parser.add_argument("--count", type=int, default=10000, help="programs (10000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first program (0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--shrink", type=int, default=20, help="failures that are made small (20)")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="where failing programs go (build/fuzz)")
    parser.add_argument("--json", type=Path, help="where to write how many passed and failed")
    parser.add_argument(
        "--plans",
        action="store_true",
        help="programs that are compiled with many plans, whose results must be the same",
    )
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.count)
    summary = fuzz(seeds, options.jobs, _show, "all" if options.plans else "")
    print(f"\r{summary}")
    if options.json is not None:
        options.json.write_text(summary.to_json())
    for i, found in enumerate(summary.found):
        _report(shrunk(found) if i < options.shrink else found, options.out)
    return 1 if summary.found else 0


def _show(summary: Summary, failed: bool) -> None:
    if failed:
        found = summary.found[-1]
        print(f"\rseed {found.seed}: {found.failure.kind}: {found.failure.what[:200]}", file=sys.stderr)
    if summary.count % 10 == 0:
        line = f"{summary.count} programs, {summary.seconds:.0f} s, {len(summary.found)} failures"
        print(f"\r{line}", end="", file=sys.stderr, flush=True)


def _report(found: Found, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"seed_{found.seed}.py"
    note = "" if found.alone else "\n# It passes in a process of its own: something before it matters."
    path.write_text(
        f"# seed {found.seed}: {found.failure.kind}: {_comment(found.failure.what)}{note}\n{found.program.script()}"
    )
    path.with_suffix(".json").write_text(found.program.to_json())
    print(f"\nseed {found.seed}, {path}: {found.failure.kind}: {found.failure.what[:600]}")
    print(found.program.settings)
    print(found.program.code())


def _comment(text: str) -> str:
    return text.replace("\n", "\n# ")


if __name__ == "__main__":
    sys.exit(main())
