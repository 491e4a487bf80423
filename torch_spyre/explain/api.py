"""``torch.spyre.explain``: runs a program and tells what the backend did with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .collect import collect
from .report import Report
from .trials import Program
from .watch import Failure, Watched, noticing, watching


def explain(
    program: Callable[..., Any],
    *args: Any,
    compile: bool = True,
    with_superdsc: bool = False,
    trials: bool = True,
    **kwargs: Any,
) -> Report:
    """Runs a function or module with these arguments, and reports what the backend did that the program does not say.

    It is compiled first, unless it is already, or ``compile=False`` says to explain it eagerly. It is called twice:
    once to compile, with Dynamo's caches cleared so that graph breaks are seen, and once to be timed. Where it has
    graph breaks, recompiles, eager ops or sizes between whole sticks, it is called again without them, to tell what
    they cost; ``trials=False`` leaves that out. If a call fails, the report has the failure and what was learned before
    it.
    """
    if compile:
        torch._dynamo.reset()
        called = program if _is_compiled(program) else torch.compile(program)
    else:
        called = program
    again = Program(_inner(program), args, kwargs, compile) if trials else None
    return told(_title(program), lambda: called(*args, **kwargs), with_superdsc, program=again)


def told(
    title: str, call: Callable[[], Any], with_superdsc: bool = False, calls: int = 2, program: Program | None = None
) -> Report:
    """The report of the last of so many calls, and of what Dynamo said in all of them."""
    watched, failure, kept = Watched(), None, None
    with noticing() as notices:
        try:
            for _ in range(calls):
                with watching() as watched:
                    kept = call()  # what the program leaves is there when its arguments are looked at
        except Exception as error:
            failure, program = Failure.of(error), None
    del kept
    return Report(collect(title, watched, notices, failure, with_superdsc, program))


def _is_compiled(program: Callable[..., Any]) -> bool:
    return isinstance(program, torch._dynamo.eval_frame.OptimizedModule) or hasattr(
        program, "_torchdynamo_orig_callable"
    )


def _inner(program: Callable[..., Any]) -> Callable[..., Any]:
    """What was compiled."""
    if isinstance(program, torch._dynamo.eval_frame.OptimizedModule):
        return program._orig_mod
    return getattr(program, "_torchdynamo_orig_callable", program)


def _title(program: Callable[..., Any]) -> str:
    inner = _inner(program)
    return type(inner).__name__ if isinstance(inner, torch.nn.Module) else getattr(inner, "__name__", repr(inner))
