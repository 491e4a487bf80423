"""Copies in LX, of arguments or of buffers that another op wants divided otherwise.

:mod:`plan_scratchpad` decides which of them find room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..layout.device_ir import DeviceOp
from ..loop_ir import Access


@dataclass(frozen=True)
class LxCopy:
    """``op`` makes the copy, right in front of the op at ``before``, and the ops at ``readers`` read it instead of
    ``source``. Positions count the ops without any copies."""

    source: str
    op: DeviceOp
    before: int
    readers: tuple[int, ...]

    @property
    def buffer(self) -> str:
        return self.op.loop_op.out.buffer


def with_copies(ops: list[DeviceOp], wanted: list[LxCopy]) -> list[DeviceOp]:
    """The ops with the copies in their places."""
    found: list[DeviceOp] = []
    for at, op in enumerate(ops):
        found += [copy.op for copy in wanted if copy.before == at]
        for copy in wanted:
            if at in copy.readers:
                op = _reading(op, copy)
        found.append(op)
    return found


def _reading(op: DeviceOp, copy: LxCopy) -> DeviceOp:
    """The op reading the copy. A copy made inside a tile loop holds what this iteration reads, so no loop moves it."""
    operands = []
    for access, operand in zip(op.accesses(), op.operands, strict=True):
        still = replace(operand)
        if access.buffer == copy.source:
            still.tile_steps = [[0] * len(operand.constant) for _ in operand.tile_steps]
        operands.append(still)
    ins = tuple(
        replace(each, buffer=copy.buffer) if isinstance(each, Access) and each.buffer == copy.source else each
        for each in op.loop_op.ins
    )
    return replace(op, loop_op=replace(op.loop_op, ins=ins), operands=operands)
