"""A process that runs samples: tasks come in on standard input, results go out on standard output, JSON line by line.

An op that crashes or hangs takes this process with it and nothing else; see :mod:`tests.coverage.pool`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, TextIO

import torch

from .check import Result, check, describe
from .ops import every


class _Late(BaseException):
    """Not an Exception: whatever the op catches, this is not meant."""


def main() -> None:
    # Whatever prints, in Python or C++, must not mix with the results.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10**6
    signal.signal(signal.SIGALRM, _alarm)
    every()
    _say(out, {"event": "ready"})
    for line in sys.stdin:
        _run(json.loads(line), out)
        _say(out, {"event": "done"})


def _run(task: dict[str, Any], out: TextIO) -> None:
    """All samples of an op in one mode, apart from those that are done. Sample -1 is the making of the samples."""
    op, mode = every()[task["op"]], task["mode"]
    done = {tuple(each) for each in task["done"]}
    if ("", -1) in done:
        return
    torch._dynamo.reset()
    for dtype in op.dtypes:
        name = str(dtype).removeprefix("torch.")
        if name not in task["dtypes"] or (name, -1) in done:
            continue
        _say(out, {"event": "begin", "result": Result(op.name, mode, name, -1).to_json()})
        for number, sample in enumerate(op.samples(dtype, task["samples"])):
            if (name, number) in done:
                continue
            result = Result(op.name, mode, name, number, describe(op, sample))
            _say(out, {"event": "begin", "result": result.to_json()})
            signal.alarm(task["limit"])
            try:
                result = check(op, dtype, number, sample, mode)
            except _Late:
                result.outcome, result.note = "crash", f"not done after {task['limit']} s"
            finally:
                signal.alarm(0)
            _say(out, {"event": "end", "result": result.to_json()})


def _alarm(*_: Any) -> None:
    raise _Late


def _say(out: TextIO, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=out, flush=True)


if __name__ == "__main__":
    main()
