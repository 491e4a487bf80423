"""``python -m tests.coverage [ops]``: PyTorch's own samples on the card, eager and compiled, against the host.

Without op names everything runs, docs/supported_operations.md is written, and the exit status is 1 if an op that has to
be native is not, if fewer than 99 % of the samples are right in a mode, or if something crashed. Details of every
sample lie in build/coverage.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from . import page, pool
from .check import MODES, Result
from .ops import DTYPES, every

ROOT = Path(__file__).parents[2]


def main() -> int:
    options = _options()
    names = options.ops or list(every())
    if unknown := [name for name in names if name not in every()]:
        sys.exit(f"No such op: {', '.join(unknown)}. OpInfo's names are meant, with .variant where there are several.")
    tasks = [_task(options, name, mode) for mode in options.modes for name in names]
    results = _run(tasks, options.jobs, options.json)
    if not options.ops and options.modes == list(MODES) and options.dtypes == _names(DTYPES):
        page.PATH.write_text(page.text(results))
    if options.counts is not None:
        options.counts.write_text(json.dumps(page.counts(results)))
    problems = page.problems(results)
    print("\n".join(["", *page.summary(results), "", *problems]))
    return 1 if problems else 0


def _run(tasks: list[dict[str, Any]], jobs: int, path: Path) -> list[Result]:
    """The results in a fixed order; as they come, they are shown and kept in the file."""
    results: list[Result] = []
    count = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:

        def done(task: dict[str, Any], new: list[Result]) -> None:
            nonlocal count
            count += 1
            results.extend(new)
            print(f"[{count}/{len(tasks)}] {task['mode']} {task['op']}: {page.tally(new)}", flush=True)
            for result in new:
                print(json.dumps(result.to_json()), file=file, flush=True)
                if result.outcome in page.BAD:
                    print(f"    {result.outcome}: {result.dtype} {result.call}: {result.note}", flush=True)

        pool.run(tasks, jobs, done)
    order = ["", *_names(DTYPES)]
    return sorted(results, key=lambda r: (r.op, MODES.index(r.mode), order.index(r.dtype), r.sample))


def _task(options: argparse.Namespace, op: str, mode: str) -> dict[str, Any]:
    chosen = {"dtypes": options.dtypes, "samples": options.samples, "limit": options.limit}
    return {"op": op, "mode": mode, "done": [], **chosen}


def _names(dtypes: Any) -> list[str]:
    return [str(dtype).removeprefix("torch.") for dtype in dtypes]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    parser.add_argument("ops", nargs="*", help="OpInfo names, all if there are none")
    listed = {"type": lambda text: text.split(",")}
    parser.add_argument("--modes", default=list(MODES), **listed, help="eager,compiled")
    parser.add_argument("--dtypes", default=_names(DTYPES), **listed, help=",".join(_names(DTYPES)))
    parser.add_argument("--samples", type=int, default=4, help="at most, per op and dtype")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--limit", type=int, default=60, help="seconds per sample")
    parser.add_argument("--json", type=Path, default=ROOT / "build/coverage.jsonl", help="where details go")
    parser.add_argument("--counts", type=Path, help="where to write how many samples passed, failed and were skipped")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
