"""Which loop of which op runs along which named dimension.

Names come from hints (``spyre_hint(named_dims=[...])`` names the dimensions of what the ops inside make) and follow the
memory they were given to: a loop that moves through a buffer as a named dimension does has its name, whatever views lie
between, and gives it on to whatever else it moves through.
"""

from __future__ import annotations

from typing import Any

from ..loop_ir import Access, Kernel, LoopOp


def name_dims(kernel: Kernel) -> None:
    """Sets ``names`` of every op, where there are hints at all."""
    if not any(map(scopes, kernel.ops)):
        return
    known: dict[str, dict[tuple[int, int], str]] = {}  # by buffer: (stride, size) of a dimension: its name
    found: list[list[str]] = [[""] * len(op.sizes) for op in kernel.ops]
    for op in kernel.ops:
        _take_hint(kernel, op, known)
    changed = True
    while changed:
        changed = False
        for op, names in zip(kernel.ops, found, strict=True):
            for loop, size in enumerate(op.sizes):
                if not names[loop] and (name := _name(op, loop, known)):
                    names[loop] = name
                    changed = True
                    for access in _accesses(op):
                        if access.strides[loop]:
                            known.setdefault(access.buffer, {}).setdefault((access.strides[loop], size), name)
    for op, names in zip(kernel.ops, found, strict=True):
        op.names = tuple(names)


def scopes(op: LoopOp) -> list[dict[str, Any]]:
    """The hints around an op, the outermost first."""
    return list(op.hints.get("scopes", ()))


def _accesses(op: LoopOp) -> list[Access]:
    return [op.out, *(access for access in op.ins if isinstance(access, Access))]


def _name(op: LoopOp, loop: int, known: dict[str, dict[tuple[int, int], str]]) -> str:
    size = op.sizes[loop]
    names = (known.get(access.buffer, {}).get((access.strides[loop], size), "") for access in _accesses(op))
    return next((name for name in names if name), "")


def _take_hint(kernel: Kernel, op: LoopOp, known: dict[str, dict[tuple[int, int], str]]) -> None:
    buffer = kernel.buffers[op.out.buffer]
    for scope in reversed(scopes(op)):
        names = scope.get("named_dims", ())
        if len(names) != len(buffer.size):
            continue
        given = known.setdefault(buffer.name, {})
        for name, size, stride in zip(names, buffer.size, buffer.stride, strict=True):
            if size > 1:
                given.setdefault((stride, size), name)
        return
