"""A failing program made small: as long as it still fails alike, steps, settings, layouts and sizes go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.fuzz import reference
from tests.fuzz.bounds import Invalid
from tests.fuzz.execute import Failure
from tests.fuzz.program import Program, Settings, Step, without_unused_inputs

Run = Callable[[Program], Failure | None]


def shrink(program: Program, failure: Failure, run: Run, attempts: int = 300) -> tuple[Program, Failure]:
    """The smallest program found, and how it fails; ``run`` is asked at most ``attempts`` times."""
    while attempts > 0:
        for candidate in _smaller(program):
            if candidate == program or not _valid(candidate):
                continue
            attempts -= 1
            found = run(candidate)
            if found is not None and failure.like(found):
                program, failure = candidate, found
                break
            if attempts <= 0:
                break
        else:
            break
    return program, failure


def _valid(program: Program) -> bool:
    try:
        reference.run(program)
    except Invalid:
        return False
    return True


def _smaller(program: Program) -> Iterator[Program]:
    yield from _fewer_steps(program)
    yield from _simpler_settings(program)
    yield from _fewer_outputs(program)
    yield from _bypassed(program)
    yield from _simpler_inputs(program)
    yield from _smaller_sizes(program)


def _fewer_steps(program: Program) -> Iterator[Program]:
    count = len(program.steps)
    size = count // 2
    while size:
        for start in range(count - size, -1, -size):
            yield _without(program, set(range(start, start + size)))
        size //= 2


def _without(program: Program, gone: set[int]) -> Program:
    """Without these steps and all that needs them."""
    missing: set[str] = set()
    steps: list[Step] = []
    head = program.head
    for i, step in enumerate(program.steps):
        if i in gone or missing & set(step.operands):
            missing.add(step.name)
            head -= i < program.head
        else:
            steps.append(step)
    outputs = tuple(name for name in program.outputs if name not in missing)
    return without_unused_inputs(replace(program, steps=tuple(steps), head=head, outputs=outputs))


def _simpler_settings(program: Program) -> Iterator[Program]:
    plain = Settings()
    changes: list[dict[str, Any]] = [
        {"plans": ""},
        {"compiled": False},
        {"mode": plain.mode},
        {"lx": plain.lx},
        {"cores": plain.cores},
    ]
    if program.settings.cores != plain.cores:
        changes.append({"cores": 1})
    for change in changes:
        yield replace(program, settings=replace(program.settings, **change))
    yield replace(program, head=0)
    yield replace(program, steps=tuple(replace(step, hint="") for step in program.steps))


def _fewer_outputs(program: Program) -> Iterator[Program]:
    for name in program.outputs:
        yield without_unused_inputs(replace(program, outputs=tuple(n for n in program.outputs if n != name)))


def _bypassed(program: Program) -> Iterator[Program]:
    """A step's operand in place of its result."""
    for i, step in enumerate(program.steps):
        for operand in dict.fromkeys(step.operands):
            rest = []
            for later in program.steps[i + 1 :]:
                names = tuple(operand if name == step.name else name for name in later.operands)
                rest.append(replace(later, operands=names))
            outputs = tuple(dict.fromkeys(operand if name == step.name else name for name in program.outputs))
            shorter = replace(program, steps=(*program.steps[:i], *rest), outputs=outputs)
            yield without_unused_inputs(replace(shorter, head=min(shorter.head, len(shorter.steps))))


def _simpler_inputs(program: Program) -> Iterator[Program]:
    for i, given in enumerate(program.inputs):
        changes: list[dict[str, Any]] = [{"layout": "plain"}, {"seed": 0}]
        if given.kind not in ("order", "index"):
            changes += [{"kind": "whole"}, {"dtype": "float32"}]
        for change in changes:
            yield replace(program, inputs=(*program.inputs[:i], replace(given, **change), *program.inputs[i + 1 :]))


def _smaller_sizes(program: Program) -> Iterator[Program]:
    """One size everywhere, parameters included, by a smaller one."""
    sizes = {n for given in program.inputs for n in given.shape}
    for size in sorted(sizes, reverse=True):
        for less in sorted({1, 2, 3, size // 2, size - 1}):
            if 0 < less < size:
                inputs = tuple(
                    replace(
                        given,
                        shape=tuple(less if n == size else n for n in given.shape),
                        high=less if given.high == size else given.high,
                    )
                    for given in program.inputs
                )
                steps = tuple(
                    replace(step, parameters={k: _resized(v, size, less) for k, v in step.parameters.items()})
                    for step in program.steps
                )
                yield replace(program, inputs=inputs, steps=steps)
    for i, given in enumerate(program.inputs):
        for dim, size in enumerate(given.shape):
            if size > 1:
                shape = (*given.shape[:dim], 1, *given.shape[dim + 1 :])
                yield replace(
                    program, inputs=(*program.inputs[:i], replace(given, shape=shape), *program.inputs[i + 1 :])
                )


def _resized(value: Any, size: int, less: int) -> Any:
    if isinstance(value, list):
        return [_resized(each, size, less) for each in value]
    return less if type(value) is int and value == size else value
