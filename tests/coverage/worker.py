"""A process that runs samples: tasks come in on standard input, results go out on standard output, JSON line by line.

An op that crashes or hangs takes this process with it and nothing else; see :mod:`tests.coverage.pool`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import torch

from tests.workers import Requests

from .check import Result, check, describe
from .ops import every


class _Late(BaseException):
    """Not an Exception: whatever the op catches, this is not meant."""


def main() -> None:
    tasks = Requests()
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10**6
    signal.signal(signal.SIGALRM, _alarm)
    every()
    tasks.answer({"event": "ready"})
    for task in tasks:
        _run(task, tasks.answer)
        tasks.answer({"event": "done"})


def _run(task: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
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
        say({"event": "begin", "result": Result(op.name, mode, name, -1).to_json()})
        for number, sample in enumerate(op.samples(dtype, task["samples"])):
            if (name, number) in done:
                continue
            result = Result(op.name, mode, name, number, describe(op, sample))
            say({"event": "begin", "result": result.to_json()})
            signal.alarm(task["limit"])
            try:
                result = check(op, dtype, number, sample, mode)
            except _Late:
                result.outcome, result.note = "crash", f"not done after {task['limit']} s"
            finally:
                signal.alarm(0)
            say({"event": "end", "result": result.to_json()})


def _alarm(*_: Any) -> None:
    raise _Late


if __name__ == "__main__":
    main()
