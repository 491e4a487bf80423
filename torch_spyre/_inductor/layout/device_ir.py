"""Device IR: a kernel whose buffers have layouts, its ops in device coordinates, and what was planned for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

import torch

from ..._C import SpyreTensorLayout, canonical_layout
from ...card.description import STICK_BYTES
from ...kernel_types import PlannerReport
from ..loop_ir import Access, Buffer, Kernel, LoopOp, Parameter
from ..verification import Verified
from .coordinates import Coordinates, Operand, Placement, placement

if TYPE_CHECKING:
    from ...ir.op_spec import LoopSpec, OpSpec
    from .fold_order import FoldOrders


def ceil_div(n: int, by: int) -> int:
    return -(-n // by)


@dataclass
class DeviceOp:
    """A piece of a loop op in device coordinates. ``operands``: one per Access of ``loop_op.ins``, then the output."""

    loop_op: LoopOp
    counts: list[int]  # points of each loop
    origins: list[int]  # the loop of ``loop_op`` that each loop is part of; -1 if that has none
    operands: list[Coordinates]
    reduced: int  # how many of the last loops are folded
    slices: list[int] = field(default_factory=list)  # cores per loop
    parameters: tuple[Parameter, ...] = ()
    across: tuple[int, ...] = ()  # of a copy over the ring: by loop, from how many cores on the next point comes

    def accesses(self) -> list[Access]:
        return self.loop_op.accesses()

    def __str__(self) -> str:
        shown = ", ".join(
            f"{access.buffer}@{operand}" for access, operand in zip(self.accesses(), self.operands, strict=True)
        )
        return f"{self.loop_op.name} over {self.counts} by {self.slices or 'no'} cores: {shown}"


@dataclass(frozen=True)
class LxPlacement:
    """The place of a buffer in every core's LX: the box of device coordinates that a core keeps. The box of core 0
    begins at ``origin``, those of other cores as far behind it as their tiles do."""

    origin: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return STICK_BYTES * prod(self.size[:-1])


@dataclass(frozen=True)
class Move:
    """A copy of a buffer over the ring, made ``before`` the first of the ops that want it divided otherwise."""

    source: str
    before: int
    readers: tuple[int, ...]  # positions of ops
    as_in: tuple[int, int]  # which op, and which of its operands, has all that the others want too
    there: LxPlacement  # of the copy
    microseconds: float


@dataclass
class Plan:
    """A kernel on its way through the pipeline: the stages fill it in from top to bottom."""

    kernel: Kernel
    offsets: dict[str, int]  # of arguments: where the tensor begins in its storage, in host elements
    layouts: dict[str, SpyreTensorLayout]
    cores: int
    span: int  # bytes of one tensor that a core reaches
    storages: dict[str, str] = field(default_factory=dict)  # of arguments: the first one on the same storage
    arguments: dict[str, int] = field(default_factory=dict)  # position of each argument in the launch
    fold_orders: FoldOrders | None = None  # that the layouts have to keep; None: any
    device_ops: list[DeviceOp] = field(default_factory=list)
    pool: dict[str, int] = field(default_factory=dict)  # internal buffers: byte offset in the kernel's scratch memory
    pool_bytes: int = 0
    lx: dict[str, tuple[int, LxPlacement]] = field(default_factory=dict)  # buffers in LX: their address
    moves: list[Move] = field(default_factory=list)
    planned_us: float = 0.0  # what the planner expects
    bound_us: float = 0.0  # no plan of these ops in these layouts is faster
    planner: PlannerReport = field(default_factory=PlannerReport)  # how good the plan is by the planner's own account
    specs: list[OpSpec | LoopSpec] = field(default_factory=list)
    verified: Verified = field(default_factory=Verified)
    _placements: dict[SpyreTensorLayout, Placement] = field(default_factory=dict)

    def of(self, kernel: Kernel, layouts: dict[str, SpyreTensorLayout]) -> Plan:
        """A plan of another kernel with the same arguments and limits, before it has device ops."""
        return Plan(
            kernel,
            self.offsets,
            layouts,
            self.cores,
            self.span,
            self.storages,
            self.arguments,
            self.fold_orders,
            verified=self.verified,
        )

    def copy(self) -> Plan:
        """An independent plan of the same kernel, before it has device ops."""
        kernel = replace(self.kernel, buffers=dict(self.kernel.buffers), ops=list(self.kernel.ops))
        return self.of(kernel, dict(self.layouts))

    def __str__(self) -> str:
        lines = [str(self.kernel)]
        lines += [f"  {name} lies as {layout}" for name, layout in self.layouts.items()]
        lines += [f"  device op {op}" for op in self.device_ops]
        lines += [f"  {name} in LX at {address}, {there}" for name, (address, there) in self.lx.items()]
        lines += [f"  {name} in the pool at {offset}" for name, offset in self.pool.items()]
        return "\n".join([*lines, *map(str, self.specs)])

    def placement(self, buffer: str) -> Placement:
        layout = self.layouts[buffer]
        found = self._placements.get(layout)
        if found is None:
            found = self._placements[layout] = placement(layout)
        return found

    def offset(self, access: Access) -> int:
        return self.offsets.get(access.buffer, 0) + access.offset

    def elements(self, buffer: str) -> int:
        """Elements per stick."""
        return self.layouts[buffer].device_size[-1]

    def lane_loop(self, access: Access, counts: tuple[int, ...]) -> int:
        """The loop that moves along the lanes of an operand's sticks by one, -1 if none does."""
        unit = self.layouts[access.buffer].stride_map[-1]
        if unit <= 0:
            return -1
        loops = [i for i, n in enumerate(counts) if n > 1 and access.strides[i] == unit]
        return loops[-1] if loops else -1

    def operand(self, access: Access, stick_loop: int, jumps: tuple[tuple[int, int], ...] = ()) -> Operand:
        """An operand for lifting. With a stick loop, or an index along the sticks, tile and lane are one level."""
        place = self.placement(access.buffer)
        elements, lane = self.elements(access.buffer), self.layouts[access.buffer].stride_map[-1]
        if stick_loop >= 0 or any(stride == lane and extent > elements for stride, extent in jumps):
            place = place.with_stick_pair(elements) or place
        still = next((dim for dim, n in enumerate(self.layouts[access.buffer].device_size) if n == 1), -1)
        return Operand(place.levels, place.rank, access.strides, self.offset(access), jumps, stick_loop, still)

    def operands(self, op: LoopOp) -> list[Operand]:
        """The operands of an op for lifting, the output last; each along its own sticks."""
        found = []
        accesses = [a for a in op.ins if isinstance(a, Access)]
        for position, access in enumerate([*accesses, op.out]):
            jumps = tuple((i.stride, i.extent) for i in op.jumps(position, len(accesses)))
            single = op.row.is_paged and access in op.ins[4:]  # sinks and slopes, an element for each row of heads
            found.append(self.operand(access, -1 if single else self.lane_loop(access, op.sizes), jumps))
        return found

    def temporary(
        self, dtype: torch.dtype, size: tuple[int, ...], order: tuple[int, ...], sparse: bool = False
    ) -> Buffer:
        """A new internal buffer, dense in ``order``: the last dimension in sticks, or one element per stick."""
        strides, step = [0] * len(size), 1
        for dim in reversed(order):
            strides[dim] = step
            step *= max(size[dim], 1)
        buffer = self.kernel.internal(dtype, size, tuple(strides))
        self.layouts[buffer.name] = dense_layout(buffer, order, sparse)
        return buffer


def dense_layout(buffer: Buffer, order: tuple[int, ...] | None = None, sparse: bool = False) -> SpyreTensorLayout:
    """The default layout of a dense buffer, dimensions in the order of their strides unless another one is given."""
    if order is None:
        order = stride_order(buffer)
    if not buffer.size:
        return SpyreTensorLayout((), buffer.dtype)
    layout = SpyreTensorLayout(buffer.size, buffer.stride, buffer.dtype, [*order, *([-1] if sparse else [])])
    return canonical_layout(layout)


def stride_order(buffer: Buffer) -> tuple[int, ...]:
    """Dimensions from the outermost to the innermost. Size-1 dimensions stay where they stand."""
    return tuple(sorted(range(len(buffer.size)), key=lambda d: (-buffer.stride[d], d)))
