"""``python -m tests.nightly``: all that is too long for ``make test``. Stopped and started again, it goes on."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from tests.nightly import jobs, report, runner, summary
from tests.shards import parse_shard


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description="Run what is too long for make test.")
    parser.add_argument("layers", nargs="*", help="only these layers")
    parser.add_argument("--shard", type=parse_shard, default=(1, 1), metavar="I/N", help="part I of N of the jobs")
    parser.add_argument("--jobs", type=int, default=2, help="processes of a job (2)")
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument("--list", action="store_true", help="show the jobs of this shard")
    parser.add_argument("--report", action="store_true", help="run nothing, and sum up what other machines have run")
    parser.add_argument("--state", type=Path, default=jobs.ROOT / "build/nightly", help="where results are kept")
    options = parser.parse_args()
    commit = runner.commit()
    table = jobs.table(options.jobs, night=int(commit[:4], 16))
    every = [job for job in table if not options.layers or job.layer in options.layers]
    if not every:
        parser.error("no such layer; there are " + ", ".join(dict.fromkeys(job.layer for job in table)))
    mine = [] if options.report else runner.shard(every, *options.shard)
    if options.list:
        for job in mine:
            print(f"{job.minutes:6.1f} min  {job.layer:<14} {job.name}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and the job with it
    state = options.state / commit
    outcomes = runner.run(mine, state, lambda line: print(line, flush=True), options.retry)
    # What other shards left here counts too: directories of several machines, put together, give one summary.
    others = [found for job in every if job not in mine and (found := runner.finished(job, state)) is not None]
    known = {each.name for each in (*outcomes, *others)}
    missing = [job.name for job in every if job.name not in known]
    found = summary.summarize([*outcomes, *others], commit, missing)
    (state / "summary.json").write_text(json.dumps(found, indent=1) + "\n")
    (state / "summary.txt").write_text(summary.text(found) + "\n")
    nights = report.remember(
        report.collect(commit, [*outcomes, *others], state, missing), options.state / "history.json"
    )
    (state / "report.html").write_text(report.html(nights), encoding="utf-8")
    print(summary.text(found))
    if changed := report.changes(nights):
        print(f"since {changed.since}: {len(changed.broken)} tests fail now, {len(changed.repaired)} pass again")
    print(f"{state / 'report.html'} has it by level")
    return 0 if all(outcome.ok for outcome in ([*outcomes, *others] if options.report else outcomes)) else 1


if __name__ == "__main__":
    sys.exit(main())
