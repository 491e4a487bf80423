"""The spyre device: layouts, memory, streams, kernels of the software card.

The first part is public: these names stay. The second part is internal to torch_spyre and may change at any time.
"""

import datetime
import enum
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
import torch.distributed

from .kernel_types import (
    ArgumentPlacement,
    Description,
    KernelDescription,
    LoopNest,
    MemoryChunk,
    OutputDescription,
    Shape,
    Step,
    StepTime,
)

# --- Public ----------------------------------------------------------------------------------------------------------

class DataFormats(enum.Enum):
    """The number formats of the card."""

    SEN169_FP16 = 0
    IEEE_FP32 = 1
    INVALID = 2
    SEN143_FP8 = 3
    SEN152_FP8 = 4
    SEN153_FP9 = 5
    SENINT2 = 6
    SENINT4 = 7
    SENINT8 = 8
    SENINT16 = 9
    SENINT24 = 10
    IEEE_INT64 = 11
    IEEE_INT32 = 12
    SENUINT32 = 13
    SENUINT2 = 14
    IEEE_FP16 = 15
    BOOL = 16
    BFLOAT16 = 17
    SEN18F_FP24 = 18

    def elems_per_stick(self) -> int:
        """Return how many elements fit a stick of 128 bytes. Raises ValueError for a format that the card does not
        store."""

class ElementArrangement(enum.Enum):
    """The order of elements inside a stick."""

    STANDARD = 0
    DL16_TO_FP32 = 1
    QFP8CH = 2
    EXX2 = 3

class SpyreTensorLayout:
    """The device layout of a storage: device sizes, their strides on the host, format.

    It is given by a host tensor (size and dtype; strides and an order of dimensions too), or explicitly. Layouts are
    compared by value, and are hashable and picklable. Raises ValueError for a layout that the card cannot have.
    """

    @overload
    def __init__(self, host_size: Sequence[int], dtype: torch.dtype) -> None: ...
    @overload
    def __init__(
        self,
        host_size: Sequence[int],
        host_strides: Sequence[int],
        dtype: torch.dtype,
        dim_order: Sequence[int],
        element_arrangement: ElementArrangement = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        device_size: Sequence[int],
        stride_map: Sequence[int],
        device_dtype: DataFormats,
        element_arrangement: ElementArrangement = ...,
    ) -> None: ...
    @property
    def device_size(self) -> list[int]: ...
    @property
    def stride_map(self) -> list[int]: ...
    @property
    def device_dtype(self) -> DataFormats: ...
    @property
    def element_arrangement(self) -> ElementArrangement: ...
    def with_element_arrangement(self, element_arrangement: ElementArrangement) -> SpyreTensorLayout: ...
    def device_bytes(self) -> int: ...
    def elems_per_stick(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

def get_spyre_tensor_layout(tensor: torch.Tensor) -> SpyreTensorLayout:
    """Return the layout of a spyre tensor's storage. Raises RuntimeError for other tensors."""

def set_spyre_tensor_layout(tensor: torch.Tensor, layout: SpyreTensorLayout) -> None:
    """Give a tensor's storage another layout without moving its bytes. Raises ValueError where it does not fit."""

def get_device_dtype(dtype: torch.dtype) -> DataFormats:
    """Return the card's number format for a dtype. Raises TypeError for a dtype that the card does not have."""

def get_elem_in_stick(dtype: torch.dtype) -> int:
    """Return how many elements of a dtype fit a stick of 128 bytes. Raises TypeError like get_device_dtype."""

def empty_with_layout(
    size: Sequence[int], dtype: torch.dtype, layout: SpyreTensorLayout, device: torch.device | None = None
) -> torch.Tensor:
    """Return a contiguous tensor without values in this layout. Raises where the layout does not fit the tensor."""

def spyre_empty_with_layout(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    layout: SpyreTensorLayout,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Like empty_with_layout, with host strides."""

def as_strided_with_layout(
    tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int, layout: SpyreTensorLayout
) -> torch.Tensor:
    """Return a tensor on the same memory, read through another layout. Raises where the layout or the view does not fit
    that memory."""

def reinterpret_tensor_with_layout(
    tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int, layout: SpyreTensorLayout
) -> torch.Tensor:
    """Another name of as_strided_with_layout."""

def copy_tensor(src: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> None:
    """Copy src into dst, between host and card or on a card."""

def encode_constant(value: float, device_dtype: DataFormats) -> int:
    """Return the bits of a number in one of the card's formats. Raises ValueError for a number that the format cannot
    hold, or a format that the card does not store."""

class JobPlan:
    """A kernel that is ready to be launched."""

    name: str
    def num_steps(self) -> int:
        """Return the number of steps."""

    def job_allocation_size(self) -> int:
        """Return the bytes of card memory that each launch allocates."""

    def get_step_type(self, index: int) -> str:
        """Return the type of a step: H2D, D2H, Compute or HostCompute. Raises IndexError."""

    def step_times(self) -> list[StepTime]:
        """Return the modelled time of each step of the plan's programs (internal)."""

def prepare_kernel(code: KernelDescription | Description) -> JobPlan:
    """Build a plan from the description of a kernel. Raises ValueError for a description that is malformed, beyond the
    limits, or against the rules of the hardware."""

def launch_jobplan(plan: JobPlan, tensors: Sequence[torch.Tensor], runtime_scalars: Sequence[float] = ()) -> None:
    """Queue a plan on the current stream, with its tensors and its runtime scalars, and return. Raises for tensors that
    do not fit the plan; errors of the launch itself are raised by the next call that waits."""

def launch_kernel(plan: JobPlan, tensors: Sequence[torch.Tensor], runtime_scalars: Sequence[float] = ()) -> None:
    """Another name of launch_jobplan."""

def start_runtime() -> None:
    """Start the runtime, which the first tensor does by itself. Raises where the environment is wrong."""

def free_runtime() -> None:
    """Stop the runtime. Raises RuntimeError while tensors of the card or pinned tensors are alive."""

def add_callback(device: int, stream: int, function: Callable[[], None]) -> None:
    """Queue a call of a function on a stream. What it raises is raised by the next call that waits for the stream."""

def stream_time_ns(device: int, stream: int) -> float:
    """Return the modelled time at the end of a stream's queue, in nanoseconds."""

def stream_outside_ns(device: int, stream: int) -> float:
    """Return how much of that time the stream waited for collectives."""

# --- Internal --------------------------------------------------------------------------------------------------------
# Layouts and tensors.

def canonical_layout(layout: SpyreTensorLayout) -> SpyreTensorLayout: ...
def has_default_layout(tensor: torch.Tensor) -> bool: ...
def get_transfers(tensor: torch.Tensor) -> list[LoopNest]: ...
def set_data(tensor: torch.Tensor, data: torch.Tensor) -> None: ...
def round_to_device(value: float, dtype: torch.dtype) -> float:
    """Return the value of a number after an upload in a tensor of this dtype: rounded, saturated, or truncated."""

def downcast_warning() -> bool: ...
def set_downcast_warning(on: bool) -> None: ...

# Kernels.

launch_listeners: list[Any]

class CompiledKernel:
    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]: ...
    def prepare(self, inputs: tuple[torch.Tensor, ...]) -> None: ...
    def has_variant(self, inputs: tuple[torch.Tensor, ...]) -> bool: ...
    def add_variant(
        self,
        inputs: tuple[torch.Tensor, ...],
        shapes: list[Shape],
        outputs: Sequence[OutputDescription | Description],
        plan: JobPlan | None,
        launch: Any,
    ) -> None: ...
    def forget_variants(self) -> None: ...
    def let_inputs_move(self) -> None:
        """A variant serves inputs that begin elsewhere in their memory from now on, where they look the same."""
    def at_places(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Return inputs where a variant for these inputs has them."""

class LaunchSequence:
    """Kernels and ops in their order, as generated code calls them at once."""

    def __init__(self, inputs: int, steps: list[tuple[Any, ...]], results: list[int]) -> None:
        """Steps are (kernel, inputs, results, dead) and (op, overload, arguments, results, dead), where values are
        numbered: the inputs first, then the results of each step. In the arguments of ops, (n,) is value n."""

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results. The list of inputs is empty afterwards."""

def launch_starts() -> int:
    """How often the host has called compiled kernels and launch sequences, which count once whatever is in them."""

def argument_placements(tensors: Sequence[torch.Tensor]) -> list[ArgumentPlacement]:
    """Return the placement of tensors in device memory, which a kernel is compiled for."""

def layout_guard(tensor: torch.Tensor) -> Callable[[torch.Tensor], bool]:
    """Return a function that tells whether a tensor has the layout that this one has now."""

def functional_overload(name: str, overload: str) -> tuple[str, str]:
    """Return the name and overload of the op that computes the same and writes into no argument; the op itself where
    there is none."""

def time_of_steps(steps: Sequence[Step | Description], fresh: Sequence[int] = ...) -> list[float]:
    """Return the modelled microseconds of each step on its own. ``fresh`` has, for each step, the operand that was
    written just before it, or -1."""

def bound_by(
    on_matrix_unit: bool, start_us: float, compute_us: float, memory_us: float, ring_us: float, dram_bytes: int
) -> str:
    """What most of such a step's time is for: ``start``, ``matrix unit``, ``vector unit``, ``memory``,
    ``memory pattern`` or ``ring``."""

def profiler_row_limit() -> int: ...
def set_profiler_row_limit(rows: int) -> None: ...
def kernel_counts() -> dict[str, int]: ...
def set_op_listener(listener: Callable[[str, str, JobPlan | None, str], None] | None) -> None:
    """Set what hears of eager ops: the event, the op's name, the plan that was launched, and why the CPU does it.

    The event is "launched", or "begins" and "ends" around an op that the CPU does.
    """

def forget_kernels() -> None: ...
def tile_ops() -> list[tuple[str, int, str, str, int]]: ...
def fallback_mode() -> str: ...
def set_fallback_mode(mode: str) -> None: ...
def fallback_counts() -> dict[str, int]: ...
def reset_fallback_counts() -> None: ...

class TileMemory:
    """Memory that functions of KTIR share: arrays at addresses, and scratchpads."""

    def __init__(self, regions: Sequence[tuple[int, int, Any, bool, str]]) -> None: ...

class TileProgram:
    """A function of KTIR that is ready to run."""

    def __init__(self, description: Description) -> None: ...
    def run(
        self,
        arguments: Sequence[int | float],
        memory: TileMemory,
        regions: Sequence[tuple[int, int, Any, bool, str]],
    ) -> None: ...
    def time(
        self,
        arguments: Sequence[int | float],
        memory: TileMemory,
        regions: Sequence[tuple[int, int, Any, bool, str]],
    ) -> dict[str, Any]: ...

# The runtime.

failure_listeners: list[Any]  # called before an error of the card is raised: with its type, its message and the op

def runtime_started() -> bool: ...
def in_bad_fork() -> bool: ...
def set_hardware_file(path: str) -> None: ...
def device_count() -> int: ...
def current_device() -> int: ...
def set_device(index: int) -> None: ...
def card_mode() -> str: ...
def flex_device() -> str: ...
def card_cores(index: int) -> int: ...
def card_memory(index: int) -> int: ...
def card_counters(device: int) -> bytes:
    """Return a card's counters as `spyre smi` reads them."""

def memory_snapshot(index: int) -> list[MemoryChunk]: ...
def physical_index(index: int) -> int: ...
def simd_level() -> str: ...
def default_generator(device: int) -> torch.Generator: ...
def drop_work() -> None:
    """Drop all queued work, as Ctrl-C does."""

def watch_ctrl_c() -> None:
    """Note every Ctrl-C while Python's default handler is installed."""

def note_ctrl_c() -> None:
    """Drop queued work when the card is used next."""

class SpyreCCL(torch.distributed.Backend):
    """The backend of one process group."""

    class Options(torch._C._distributed_c10d.Backend.Options):
        def __deepcopy__(self, memo: dict[int, object], /) -> SpyreCCL.Options: ...

    @property
    def options(self) -> Options: ...
    @property
    def calls(self) -> int:
        """Collectives and messages that were asked of it."""
    def monitored_barrier(self, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier of the host that raises with the rank that has not come to it, or all of them."""

def define_spyreccl() -> None:
    """Define the class SpyreCCL, once."""

def create_spyreccl(
    store: torch.distributed.Store,
    rank: int,
    size: int,
    timeout: datetime.timedelta,
    global_ranks: Sequence[int],
    make_gloo: Callable[[torch.distributed.Store, int, int, datetime.timedelta], object],
    version: str,
) -> SpyreCCL: ...
def create_lone_spyreccl(
    store: torch.distributed.Store, rank: int, size: int, timeout: datetime.timedelta, global_ranks: Sequence[int]
) -> SpyreCCL: ...
def collective_times(kind: str, bytes: int, cards: Sequence[int]) -> list[tuple[str, float]]: ...
def limit_threads(threads: int) -> None:
    """Use at most so many threads of the host from now on."""

class measure:
    """Calls of the card's C++ API timed without Python, and the limits of this machine."""

    @staticmethod
    def to_card(to: torch.Tensor, src: torch.Tensor, repeats: int) -> float: ...
    @staticmethod
    def to_host(to: torch.Tensor, src: torch.Tensor, repeats: int) -> float: ...
    @staticmethod
    def launch(plan: JobPlan, repeats: int) -> float: ...
    @staticmethod
    def multiply_add(threads: int, repeats: int) -> float: ...
    @staticmethod
    def stream(bytes_read: int, bytes_written: int, threads: int, repeats: int) -> float: ...
