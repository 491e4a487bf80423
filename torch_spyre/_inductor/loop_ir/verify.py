"""What holds of a kernel in loop IR, whichever pass has it. A rule may count on those above it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from math import gcd
from typing import get_args

import torch

from ..._C import get_device_dtype
from ...ir.core_split import BY_NATURE
from ...ops.table import OPS, WIDENED_BY_MATMUL
from ..verification import Rule, Verified, check
from .builder import TILE_OPS, is_integer
from .ir import Access, Buffer, Constant, Kernel, Kind, LoopOp, RuntimeScalar

_LEAST_LOOPS = {"matmul": 3, "attention": 4, "scan": 1, "topk": 2, "paged_attention": 8}


def verify(kernel: Kernel, where: str, verified: Verified) -> None:
    """Raises InvalidIR where a kernel breaks a rule. ``where``: the kernel and the place in the pipeline."""
    for name, buffer in kernel.buffers.items():
        if verified.is_new(buffer, name):
            check(where, BUFFER_RULES, name, buffer)
    for op in kernel.ops:
        if verified.is_new(op, _facts(kernel, op)):
            check(where, OP_RULES, kernel, op)
    check(where, KERNEL_RULES, kernel)


def _facts(kernel: Kernel, op: LoopOp) -> tuple[object, ...]:
    buffers = [kernel.buffers.get(access.buffer) for access in op.accesses()]
    loops = (op.sizes, op.reduced, op.tile_loops, op.names)
    return (op.name, op.out, op.ins, op.parameters, op.indirect, *loops, *buffers)


def described(op: LoopOp) -> str:
    """An op in a message."""
    return f"{op.name} over {list(op.sizes)}{op.where()}"


# --- buffers


def _wrong_name(name: str, buffer: Buffer) -> Iterator[str]:
    if buffer.name != name:
        yield f"buffer {name} says that it is {buffer.name}"


def _wrong_kind(name: str, buffer: Buffer) -> Iterator[str]:
    if buffer.kind not in get_args(Kind):
        yield f"buffer {name} is of the kind {buffer.kind!r}"


def _wrong_dimensions(name: str, buffer: Buffer) -> Iterator[str]:
    rank = len(buffer.size)
    if len(buffer.stride) != rank:
        yield f"buffer {name} has {rank} dimensions and {len(buffer.stride)} strides"
    if any(n < 0 for n in buffer.size):
        yield f"buffer {name} has the size {list(buffer.size)}"
    if buffer.names and len(buffer.names) != rank:
        yield f"buffer {name} has {rank} dimensions and {len(buffer.names)} names"
    if buffer.order is not None and sorted(buffer.order) != list(range(rank)):
        yield f"buffer {name} asks for the order {buffer.order} of {rank} dimensions"


def _without_format(name: str, buffer: Buffer) -> Iterator[str]:
    if not _has_format(buffer.dtype):
        yield f"buffer {name} is of {buffer.dtype}"


@lru_cache
def _has_format(dtype: torch.dtype) -> bool:
    try:
        return get_device_dtype(dtype).name != "INVALID"
    except (RuntimeError, TypeError, ValueError):
        return False


def _not_dense(name: str, buffer: Buffer) -> Iterator[str]:
    reach = 1
    if buffer.kind == "internal" and 0 not in buffer.size:
        for stride, n in sorted((s, n) for n, s in zip(buffer.size, buffer.stride, strict=True) if n > 1):
            if stride != reach:
                yield f"buffer {name} of size {list(buffer.size)} has the strides {list(buffer.stride)}"
                return
            reach *= n


# --- the shape of an op


def _unknown(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    if op.name not in OPS:
        yield f"{described(op)} is no op of the table"


def _of_no_buffer(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    for access in op.accesses():
        if access.buffer not in kernel.buffers:
            yield f"{described(op)} uses {access.buffer}, which the kernel does not have"


def _without_points(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    if min(op.sizes, default=1) < 1:
        yield f"{described(op)} has a loop without points"


def _wrong_ranks(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    rank = len(op.sizes)
    for access in op.accesses():
        if len(access.strides) != rank:
            yield f"{described(op)} has {len(access.strides)} strides for {access.buffer}"
    if op.names and len(op.names) != rank:
        yield f"{described(op)} has {len(op.names)} names of loops"
    if rank < _LEAST_LOOPS.get(op.row.kind, 0):
        yield f"{described(op)} has fewer than {_LEAST_LOOPS[op.row.kind]} loops"


def _wrong_operands(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    row = op.row
    wanted = row.arity + len({each.operand for each in op.indirect})
    if len(op.ins) != wanted:
        yield f"{described(op)} has {len(op.ins)} inputs, not {wanted}"
    if len(op.sizes) < _LEAST_LOOPS.get(row.kind, 0):
        return
    parameters = row.parameter_count(op.sizes)
    if len(op.parameters) != parameters:
        yield f"{described(op)} has {len(op.parameters)} parameters, not {parameters}"


def _wrong_folds(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    row = op.row
    least = 1 if row.folds_by_choice else BY_NATURE.get(row.kind, 0)
    most = len(op.sizes) if row.folds_by_choice else least
    if not least <= op.reduced <= most:
        yield f"{described(op)} folds {op.reduced} loops"


def _written_along_folds(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    kept = len(op.sizes) - op.reduced
    if any(stride and n > 1 for n, stride in zip(op.sizes[kept:], op.out.strides[kept:], strict=True)):
        yield f"{described(op)} writes {op.out.buffer} along loops that it folds"


def _wrong_indices(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    row = op.row
    if bool(op.indirect) != row.has_indices:
        yield f"{described(op)} has {len(op.indirect)} indices"
    if [each.operand for each in op.indirect] != ([3, 3] if row.is_paged else list(range(1, len(op.indirect) + 1))):
        yield f"{described(op)} counts its indices as {[each.operand for each in op.indirect]}"
        return
    for each in op.indirect:
        index = op.ins[each.operand]
        if not isinstance(index, Access) or not _is_integer(kernel, index):
            yield f"{described(op)} has no integers as input {each.operand}, an index"
        if each.extent < 1 or each.stride < 0:
            yield f"{described(op)} has an index in [0, {each.extent}) that moves by {each.stride}"


def _wrong_numbers(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    for position, each in enumerate(op.ins):
        if not isinstance(each, Constant):
            continue
        if not (op.row.is_pointwise or (op.row.is_attention and position == 3) or (op.row.is_paged and position > 3)):
            yield f"{described(op)} has a number as input {position}"
        if isinstance(each.value, RuntimeScalar) or not is_integer(each.dtype):
            continue
        if not (each.value == each.value // 1 and abs(each.value) <= 2**63):
            yield f"{described(op)} has {each.value} as input {position}, an integer"


def _wrong_scalars(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    for number in (*op.parameters, *(each.value for each in op.ins if isinstance(each, Constant))):
        if isinstance(number, RuntimeScalar) and number.index < 0:
            yield f"{described(op)} asks for number {number.index} of the launch"


def _wrong_kinds(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    row, made = op.row, _is_integer(kernel, op.out)
    if row.is_pointwise:
        first = 1 if op.name == "where" else 0  # its condition is bool, whatever it chooses between
        kinds = {"integer" if _is_integer(kernel, each) else "real" for each in op.ins[first:]}
        result = TILE_OPS.get((row.function or "copy", kinds.pop())) if len(kinds) == 1 else None
        if result != ("integer" if made else "real"):
            yield f"{described(op)} makes {_dtypes(kernel, op.out)} of {_dtypes(kernel, *op.ins)}"
    elif row.is_matmul:
        left, right = (_dtype(kernel, each) for each in op.ins)
        widened = right in WIDENED_BY_MATMUL and left.is_floating_point
        if is_integer(left) != made or (not widened and is_integer(right) != made):
            yield f"{described(op)} makes {_dtypes(kernel, op.out)} of {_dtypes(kernel, *op.ins)}"
    elif not made and (row.kind == "argreduce" or op.name in ("cummax_index", "cummin_index", "topkindex")):
        yield f"{described(op)} makes {_dtypes(kernel, op.out)}, which is no position"


def _wrong_formats(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    moves_bytes = op.name == "restickify" or op.row.is_gather or op.row.is_scatter
    if moves_bytes and _format(kernel, op.ins[0]) != _format(kernel, op.out):
        yield f"{described(op)} makes {_dtypes(kernel, op.out)} of {_dtypes(kernel, op.ins[0])}"


def _dtype(kernel: Kernel, operand: Access | Constant) -> torch.dtype:
    return operand.dtype if isinstance(operand, Constant) else kernel.buffers[operand.buffer].dtype


def _dtypes(kernel: Kernel, *operands: Access | Constant) -> str:
    return ", ".join(str(_dtype(kernel, each)).removeprefix("torch.") for each in operands)


def _is_integer(kernel: Kernel, operand: Access | Constant) -> bool:
    return is_integer(_dtype(kernel, operand))


def _format(kernel: Kernel, operand: Access | Constant) -> object:
    return get_device_dtype(_dtype(kernel, operand))


# --- memory


@lru_cache(1 << 14)
def bounds(sizes: tuple[int, ...], strides: tuple[int, ...], offset: int) -> tuple[int, int]:
    """The first and the last host element of an affine access."""
    reaches = [(n - 1) * stride for n, stride in zip(sizes, strides, strict=True)]
    return offset + sum(r for r in reaches if r < 0), offset + sum(r for r in reaches if r > 0)


def reached(op: LoopOp, position: int) -> tuple[int, int]:
    """The same for operand ``position`` of an op, wherever its indices lead."""
    accesses = op.accesses()
    access = accesses[position]
    low, high = bounds(op.sizes, access.strides, access.offset)
    high += sum((each.extent - 1) * each.stride for each in op.jumps(position, len(accesses) - 1))
    return low, high


def _outside(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    for position, access in enumerate(op.accesses()):
        buffer = kernel.buffers[access.buffer]
        if buffer.kind == "input":  # a view may reach over all of its storage, which the layout knows
            continue
        low, high = reached(op, position)
        if low < 0 or 0 in buffer.size or high > bounds(buffer.size, buffer.stride, 0)[1]:
            yield f"{described(op)} reaches from {low} to {high} in {buffer.name} of size {list(buffer.size)}"


def stays_inside_inputs(kernel: Kernel) -> bool:
    """Whether no op reaches beyond an input into the rest of its storage, as ``as_strided`` can."""
    for op in kernel.ops:
        for position, access in enumerate(op.accesses()):
            buffer = kernel.buffers[access.buffer]
            low, high = reached(op, position)
            if buffer.kind == "input" and (low < 0 or high > bounds(buffer.size, buffer.stride, 0)[1]):
                return False
    return True


def _unwritten(kernel: Kernel) -> Iterator[str]:
    written = {name for name, buffer in kernel.buffers.items() if buffer.kind == "input"}
    for op in kernel.ops:
        for name in op.reads():
            if name not in written:
                yield f"{described(op)} reads {name}, which nothing has written yet"
        written.add(op.out.buffer)
    for buffer in kernel.outputs():
        if buffer.name not in written and 0 not in buffer.size:
            yield f"nothing writes the output {buffer.name}"


@lru_cache(1 << 14)
def _collide(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two points surely have one element: a loop stands still, or two meet at a common multiple."""
    moving = [(n, abs(stride)) for n, stride in zip(sizes, strides, strict=True) if n > 1]
    if any(stride == 0 for _, stride in moving):
        return True
    return any(b // gcd(a, b) < n and a // gcd(a, b) < m for (n, a), (m, b) in combinations(moving, 2))


def _written_twice(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    inner = slice(len(op.tile_loops), len(op.sizes) - op.reduced)
    if not op.row.is_scatter and _collide(op.sizes[inner], op.out.strides[inner]):
        yield f"{described(op)} writes elements of {op.out.buffer} several times: strides {list(op.out.strides)}"


# --- tile loops


def _wrong_tile_loops(kernel: Kernel, op: LoopOp) -> Iterator[str]:
    counts = tuple(count for _, count in op.tile_loops)
    if len(counts) > len(op.sizes) - op.reduced or op.sizes[: len(counts)] != counts:
        yield f"{described(op)} has tile loops of {list(counts)}"
    elif min(counts, default=2) < 2:
        yield f"{described(op)} has tile loops of {list(counts)}, one without tiles"


def _outside_of_tiles(kernel: Kernel) -> Iterator[str]:
    """Where every iteration writes the same place, only the last one's values outlive the loop."""
    if not any(op.tile_loops for op in kernel.ops):
        return
    runs = _runs(kernel)
    within: dict[str, set[int]] = defaultdict(set)  # by buffer: the outermost loop that writes it again and again
    for op, run in zip(kernel.ops, runs, strict=True):
        again = (n for n, _ in enumerate(op.tile_loops) if not op.out.strides[n])
        if next(again, None) is not None and not op.row.is_scatter:
            within[op.out.buffer].add(run)
    for op, run in zip(kernel.ops, runs, strict=True):
        for name in dict.fromkeys((*op.reads(), op.out.buffer)):
            if name in within and within[name] != {run}:
                yield f"{described(op)} uses {name}, of which another tile loop keeps one tile only"
    for name in within:
        if kernel.buffers[name].kind != "internal":
            yield f"tile loops keep one tile only of {name}, an argument"


def _runs(kernel: Kernel) -> list[int]:
    """Of every op: the position of the first op in the same outermost loop."""
    found: list[int] = []
    for at, op in enumerate(kernel.ops):
        before = kernel.ops[at - 1] if at else None
        same = before is not None and op.tile_loops and before.tile_loops[:1] == op.tile_loops[:1]
        found.append(found[-1] if same else at)
    return found


BUFFER_RULES = (
    Rule("a buffer is called by its name", _wrong_name),
    Rule("a buffer is an input, an output or internal", _wrong_kind),
    Rule("a buffer has a stride per dimension, and as many names and places in an order", _wrong_dimensions),
    Rule("the card has a format for every buffer", _without_format),
    Rule("buffers inside a kernel are dense", _not_dense),
)
OP_RULES = (
    Rule("ops are those of the op table", _unknown),
    Rule("every access is to a buffer of the kernel", _of_no_buffer),
    Rule("every loop has points", _without_points),
    Rule("every access has a stride per loop, and loops all have names or none has", _wrong_ranks),
    Rule("an op has the inputs and parameters that the op table says", _wrong_operands),
    Rule("an op folds as many of its last loops as the op table lets it", _wrong_folds),
    Rule("a result stands still along folded loops", _written_along_folds),
    Rule("gathers and scatters, and paged attention alone besides, have indices of integers", _wrong_indices),
    Rule("only pointwise ops, masks, sinks and slopes of attention take numbers, of their own kind", _wrong_numbers),
    Rule("numbers of a launch are counted from 0", _wrong_scalars),
    Rule("an op has a function for integers or reals as its operands are", _wrong_kinds),
    Rule("what moves bytes keeps their format", _wrong_formats),
    Rule("an access stays within its buffer", _outside),
    Rule("tile loops come first in an op, and it folds none of them", _wrong_tile_loops),
    Rule("no two points of an op write one element, unless it scatters", _written_twice),
)
KERNEL_RULES = (
    Rule("what is read was written before, and outputs are written", _unwritten),
    Rule("what a tile loop keeps one tile of is used inside the loop alone", _outside_of_tiles),
)
