"""The data of a run, as JSON: what the collector writes and what reports, the explorer and other programs read.

Times are modelled microseconds, addresses and sizes are bytes. Texts that occur often are kept once, in ``texts``.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from ..kernel_types import PlannerReport

FORMAT = "spyre-run"
VERSION = 1

Text = int
"""A position in ``RunData.texts``."""


class Card(TypedDict):
    """What the clock knows of the card."""

    cores: int
    stick_bytes: int
    lx_bytes: int  # of each core
    lx_budget: int  # of it, for buffers that stay
    constants: dict[str, float]  # the hardware description


class Step(TypedDict):
    """One step of a card program; ``us`` = ``begin_us`` + the longer of compute and memory + ``ring_us``."""

    op: str  # as a person calls it: "matmul", "exp", "reduce add"
    aten: str
    source: Text  # 'File "model.py", line 12, in forward', or ""
    spec: int  # position in Kernel.specs
    iteration: NotRequired[dict[str, int]]  # of the tile loops around it: the values of their symbols in the OpSpec
    extents: list[int]
    slices: list[int]  # cores per extent
    us: float
    begin_us: float
    compute_us: float
    memory_us: float
    ring_us: float
    bytes_read: int
    bytes_written: int
    bytes_ring: int
    least_us: float  # at the limit of its unit, or of the bytes that it has to carry
    bound_by: str
    reads: list[int]  # buffers
    writes: list[int]


class Layout(TypedDict):
    """How a buffer lies on the card."""

    format: str
    device_size: list[int]  # the last is the elements of a stick
    stride_map: list[int]  # host elements for one step along each device dimension; -1: padding or replica


class Buffer(TypedDict):
    """A value of a kernel: where it is and from which step to which it lives."""

    name: str
    kind: Literal["input", "output", "internal"]
    dtype: str
    size: list[int]
    stride: list[int]
    layout: Layout
    bytes: int  # on the card, padding included
    padding: int  # bytes of it that hold no element
    place: Literal["lx", "pool", "argument"]
    address: int  # in LX or in the pool; the position of an argument
    core_bytes: int  # in LX: of each core
    first: int  # step
    last: int
    why_not: NotRequired[str]  # why it is not in LX, in a sentence; internal buffers only
    saving_us: NotRequired[float]  # what the kernel would save with it in LX


class Spec(TypedDict):
    """An OpSpec, the SuperDSC made of it, and the loop op of the lowered kernel that it comes from."""

    text: Text
    superdsc: Text
    loop_op: int  # position in Kernel.loop_ops; -1: a pass added it
    nodes: list[str]  # FX nodes, in the first occurrence of the kernel


class Kernel(TypedDict):
    name: str
    key: str
    us: float  # of a launch, without waits
    bound_us: float  # no plan of these ops in these layouts is faster
    planner: PlannerReport
    loop_ops: list[Text]
    specs: list[Spec]
    steps: list[Step]
    buffers: list[Buffer]
    occurrences: int  # calls in the compiled graph


class Launch(TypedDict):
    kernel: int
    stream: int
    start_us: float
    us: float


class EagerOp(TypedDict):
    """Calls of an op outside of compiled code."""

    aten: str
    source: Text
    count: int
    us: float
    fallback: str  # why the CPU did it; "" for the card


class EagerCall(TypedDict):
    """One of these calls on the clock of its stream."""

    op: int  # position in RunData.eager
    stream: int
    start_us: float
    us: float


class Finding(TypedDict):
    """Something that the backend did and the user did not write, or a change worth making."""

    kind: Literal[
        "graph break", "fallback", "recompile", "restickify", "layout", "padding", "few cores", "not in LX", "eager"
    ]
    text: str  # a sentence
    source: Text
    us: float  # that it costs
    advice: NotRequired[str]  # what to change
    saving_us: NotRequired[float]  # measured: the program timed with the cause removed
    saving_compiles: NotRequired[int]  # the same for compiles


class Totals(TypedDict):
    us: float  # of the stream's clock, from the first op to the end of the last
    launched_us: float
    other_us: float  # eager ops, transfers, waits
    least_us: float
    compulsory_bytes: int  # inputs once, outputs once
    moved_bytes: int


class RunData(TypedDict):
    format: str
    version: int
    title: str
    card: Card
    totals: Totals
    texts: list[str]
    files: dict[str, dict[str, str]]  # source text around the lines that occur: path, number of the line, line
    kernels: list[Kernel]
    launches: list[Launch]
    eager: list[EagerOp]
    eager_calls: list[EagerCall]  # the first of them, in order
    findings: list[Finding]
    failure: NotRequired[str]  # what stopped the run; what was learned before is here all the same
    failure_source: NotRequired[Text]  # the line of the program where it did
