"""Types of the plain descriptions that Python and ``_C`` exchange about kernels: for annotations only.

Descriptions are data, and may come from files of any origin: ``_C`` checks all of it when a kernel is prepared, and
raises ValueError for an unknown field of a program, a missing one, or one of the wrong type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, final

if TYPE_CHECKING:
    import torch

    from . import _C

Scalar = float | str
"""A number; ``"inf"``, ``"-inf"`` or ``"nan"``, which JSON does not have; ``"%2"``: runtime scalar 2 of a launch."""


@final
class Operand(TypedDict):
    """An operand in memory. Exactly one of ``argument`` and ``lx`` says where it is."""

    argument: NotRequired[int]  # position among the kernel's arguments, then its allocations
    lx: NotRequired[int]  # byte address in LX
    offset: NotRequired[int]  # bytes from the start of the argument; 0 by default
    strides: list[int]  # bytes, one for each extent of the step
    format: NotRequired[_C.DataFormats | str]  # SEN169_FP16 by default
    stick: NotRequired[int]  # the extent that runs through a stick; -1, the default: none
    core_strides: NotRequired[list[int]]  # in LX: which core's; each core's own by default


@final
class Constant(TypedDict):
    """An operand that is a number."""

    value: Scalar
    format: NotRequired[_C.DataFormats | str]


class IndirectAccess(TypedDict):
    """An access of a step whose position is read from an index tensor."""

    operand: int  # position of the index tensor among the operands
    extent: int  # indices i are in [-extent, extent); negative ones count from the end
    stride: int  # bytes from one index to the next
    stick: NotRequired[bool]  # the index moves along sticks instead


class Step(TypedDict):
    """One step of a card program: an op over a loop nest. The first operand is the result."""

    op: str
    extents: list[int]
    slices: NotRequired[list[int]]  # how many cores divide each extent; 1 by default
    operands: list[Operand | Constant]
    constant: NotRequired[int]  # the bits that a fill writes
    function: NotRequired[str]  # the name of the tile operation
    constants: NotRequired[list[Scalar]]  # of the tile operation
    reduced: NotRequired[int]  # how many of the last extents are reduced
    checked: NotRequired[bool]  # an integer result that its format cannot hold is an error, instead of wrapping
    indirect: NotRequired[list[IndirectAccess]]
    tile: NotRequired[list[int]]  # points of each extent that a core has in LX at a time
    staging: NotRequired[int]  # the byte of LX where tiles of operands in device memory begin
    special: NotRequired[bool]  # a special function of the vector unit, which takes longer
    turn: NotRequired[bool]  # the first step of another iteration of a tile loop
    source: NotRequired[str]  # the line of the user's program, for messages
    aten: NotRequired[str]  # the op of the user's program
    spec: NotRequired[int]  # position of its OpSpec among those of the kernel


class Program(TypedDict):
    steps: list[Step]


class ComputeStep(TypedDict):
    """Runs a program on the card."""

    type: Literal["Compute"]
    program: Program


class TransferStep(TypedDict):
    """Copies a buffer of the plan into an argument (H2D), or back (D2H)."""

    type: Literal["H2D", "D2H"]
    argument: int
    offset: NotRequired[int]
    buffer: int


class HostComputeStep(TypedDict):
    """Calls a function with the plan's buffers, which it may change in place."""

    type: Literal["HostCompute"]
    function: Callable[[list[bytearray]], None]


class KernelDescription(TypedDict):
    """A kernel, as ``_C.prepare_kernel`` takes it."""

    name: str
    arguments: Sequence[int]  # bytes of each
    allocate: NotRequired[list[int]]  # bytes of memory that each launch allocates: the arguments after `arguments`
    buffers: NotRequired[list[bytes]]  # host buffers of the plan
    steps: list[ComputeStep | TransferStep | HostComputeStep]


class LayoutDescription(TypedDict):
    """A layout, as JSON: the fields of SpyreTensorLayout."""

    device_size: list[int]
    stride_map: list[int]
    device_dtype: str  # the name of a data format


class CompiledOutput(TypedDict):
    """A tensor that is allocated for a compiled kernel to write, as JSON."""

    size: list[int]
    stride: list[int]
    dtype: str  # the name of a torch.dtype
    layout: LayoutDescription


class PlannerReport(TypedDict, total=False):
    """How good a plan is by the planner's own account; empty if no plan was searched for."""

    status: str  # what the solver says of its solution
    scope: str  # the plans that the bound covers
    objective_us: float  # the expected time
    best_bound_us: float  # no plan in the scope is faster; 0: not known
    gap: float | None  # objective / bound - 1
    seconds: float  # of the search


class Provenance(TypedDict):
    """The OpSpecs that a kernel was compiled from, in the order of its SuperDSC files."""

    key: str  # a hash of them, which is part of the kernel's name
    specs: list[str]


class CompiledDescription(KernelDescription):
    """A kernel that the compiler made, as the kernel cache stores it."""

    provenance: Provenance
    bound_us: float  # no plan of these ops in these layouts is faster; 0: not computed
    planner: PlannerReport
    plan: Description  # buffers and their use by ops: describe_plan
    inputs: list[Shape]  # sizes and strides of the inputs, which are the first arguments
    outputs: list[CompiledOutput]  # the arguments after them


class OutputDescription(TypedDict):
    """A tensor that is allocated for a kernel to write."""

    size: list[int]
    stride: list[int]
    dtype: torch.dtype
    layout: _C.SpyreTensorLayout | None  # None: the default layout


class EagerKernelDescription(TypedDict):
    """The kernel of an eager call, as ``compile_call`` returns it to ``_C``.

    Tensors of a call are those on the card, with lists flattened. Where there is something to ``resize``, ``_C`` does
    that and asks for the kernel of the resized call.
    """

    plan: _C.JobPlan | None  # None: nothing to compute
    arguments: list[int]  # tensors of the call that the launch takes, before the outputs
    outputs: list[OutputDescription]  # allocated for each call
    copies: list[tuple[int, int]]  # (tensor of the call, output to copy into it afterwards)
    returns: list[tuple[Literal["argument", "output"], int] | None]  # one for each result
    resize: list[tuple[int, list[int], list[int]]]  # (tensor of the call, size, strides)
    # (which scalar of the call, negated, dtype to round it to) for each scalar that a launch takes; None if the kernel
    # holds for the scalars of this call alone.
    runtime_scalars: list[tuple[int, bool, torch.dtype | None]] | None


class StepTime(TypedDict):
    """The modelled time of one step, as ``JobPlan.step_times`` returns it; times are in microseconds."""

    op: str
    function: str
    source: str
    aten: str
    spec: int  # -1: unknown
    extents: list[int]
    slices: list[int]
    us: float  # in all
    begin_us: float
    compute_us: float
    memory_us: float
    ring_us: float
    bytes_read: int
    bytes_written: int
    bytes_ring: int


ArgumentPlacement = tuple["_C.SpyreTensorLayout", int, int]
"""Layout of an argument's storage, host elements before the tensor in its memory, and the position of the first
argument in the same memory."""

Shape = tuple[list[int], list[int]]
"""Sizes and strides."""

LoopNest = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Ranges, device strides and host strides of the loops that move a tensor between host and card."""

MemoryPart = tuple[int, int, str]
"""Address, bytes, and ``"allocated"``, ``"pending"`` (freed, and still used by queued work) or ``"free"``."""

MemoryChunk = tuple[int, int, bool, list[MemoryPart]]
"""Address, bytes, whether it is for small blocks, and its parts."""

Description = dict[str, Any]
"""A description as JSON gives it, before it is checked."""
