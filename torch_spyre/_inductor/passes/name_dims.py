"""Which loop of which op runs along which named dimension.

Arguments may have names (:mod:`propagate_named_dims`), and ``spyre_hint(named_dims=[...])`` names the dimensions of
what the ops inside make; one name more than these is that of the dimension they fold. Names follow the memory they were
given to: a loop that moves through a buffer as a named dimension does has its name, whatever views lie between, and
gives it on to whatever else it moves through.
"""

from __future__ import annotations

from ..loop_ir import Access, Kernel, LoopOp

Known = dict[str, dict[tuple[int, int], str]]  # by buffer: (stride, size) of a dimension: its name


def name_dims(kernel: Kernel) -> None:
    """Sets ``names`` of every op, where there are hints at all."""
    if not any(op.scopes() for op in kernel.ops):
        return
    known: Known = {
        name: {
            (stride, size): given
            for given, size, stride in zip(buffer.names, buffer.size, buffer.stride, strict=True)
            if given
        }
        for name, buffer in kernel.buffers.items()
        if buffer.names
    }
    found: list[list[str]] = [[""] * len(op.sizes) for op in kernel.ops]
    for op, names in zip(kernel.ops, found, strict=True):
        _take_hint(kernel, op, names, known)
    changed = True
    while changed:
        changed = False
        for op, names in zip(kernel.ops, found, strict=True):
            for loop in range(len(op.sizes)):
                if not names[loop] and (name := _name(op, loop, known)):
                    names[loop] = name
                    changed = True
                    _give(op, loop, name, known)
    for op, names in zip(kernel.ops, found, strict=True):
        op.names = tuple(names)


def _accesses(op: LoopOp) -> list[Access]:
    return [op.out, *(access for access in op.ins if isinstance(access, Access))]


def _name(op: LoopOp, loop: int, known: Known) -> str:
    size = op.sizes[loop]
    names = (known.get(access.buffer, {}).get((access.strides[loop], size), "") for access in _accesses(op))
    return next((name for name in names if name), "")


def _take_hint(kernel: Kernel, op: LoopOp, names: list[str], known: Known) -> None:
    buffer = kernel.buffers[op.out.buffer]
    for scope in reversed(op.scopes()):
        given = scope.get("named_dims", ())
        folded = given[len(buffer.size) :]
        if len(given) < len(buffer.size) or len(folded) > min(op.reduced, 1):
            continue
        if folded:
            names[-1] = folded[0]
            _give(op, len(op.sizes) - 1, folded[0], known)
        dims = known.setdefault(buffer.name, {})
        for name, size, stride in zip(given, buffer.size, buffer.stride, strict=False):
            if size > 1:
                dims.setdefault((stride, size), name)
        return


def _give(op: LoopOp, loop: int, name: str, known: Known) -> None:
    for access in _accesses(op):
        if access.strides[loop]:
            known.setdefault(access.buffer, {}).setdefault((access.strides[loop], op.sizes[loop]), name)
