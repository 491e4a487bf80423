"""The builder of a kernel's loop ops, which lowerings are written with.

A :class:`Value` is a tensor during lowering: a strided view of a buffer, as PyTorch sees it. Views cost nothing; every
method that computes adds one loop op and rounds once, into the format of the dtype it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import frexp, inf, isfinite, prod
from typing import Any

import torch

from ... import _C
from ...ops.table import OPS
from ..errors import Unsupported
from .ir import Access, Buffer, Constant, Indirect, Kernel, LoopOp, Parameter, RuntimeScalar, contiguous
from .runtime_scalars import in_loop_ir, is_open

Number = bool | int | float

# (tile operation, "real" or "integer" inputs) -> "real" or "integer" result
TILE_OPS = {(name, given): result for name, _, given, result, _ in _C.tile_ops()}
SINGLE = (torch.float32, torch.float64)  # in fp32 on the card
_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def is_integer(dtype: torch.dtype) -> bool:
    return dtype in _INTEGERS


@dataclass(frozen=True)
class Value:
    """A strided view of a buffer; offset and strides in host elements.

    The buffer may hold a narrower format than ``dtype`` says: widening changes no value, so it costs nothing.
    """

    buffer: str
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @property
    def numel(self) -> int:
        return prod(self.size)

    def access(self) -> Access:
        return Access(self.buffer, self.stride, self.offset)

    def expand(self, size: Sequence[int]) -> Value:
        """Broadcast to a larger size."""
        more = len(size) - len(self.size)
        stride = [0] * more + [
            0 if mine == 1 and wanted != 1 else s
            for mine, wanted, s in zip(self.size, size[more:], self.stride, strict=True)
        ]
        return replace(self, size=tuple(size), stride=tuple(stride))

    def permute(self, order: Sequence[int]) -> Value:
        return replace(self, size=tuple(self.size[i] for i in order), stride=tuple(self.stride[i] for i in order))

    def unsqueeze(self, dim: int) -> Value:
        dim %= len(self.size) + 1
        size, stride = list(self.size), list(self.stride)
        size.insert(dim, 1)
        stride.insert(dim, 0)
        return replace(self, size=tuple(size), stride=tuple(stride))

    def squeeze(self, dim: int) -> Value:
        keep = [i for i in range(len(self.size)) if i != dim % len(self.size)]
        return self.permute(keep)

    def grouped(self, heads: int, group: int) -> Value:
        """[..., heads, m, n] as [..., heads / group, group, m, n]; one with fewer heads is shared within a group."""
        if len(self.size) < 3:
            return self
        if self.size[-3] != heads:
            return self.unsqueeze(-3)
        size = (*self.size[:-3], self.size[-3] // group, group, *self.size[-2:])
        stride = (*self.stride[:-3], self.stride[-3] * group, *self.stride[-3:])
        return replace(self, size=size, stride=stride)

    def narrow(self, dim: int, start: int, length: int) -> Value:
        size = (*self.size[:dim], length, *self.size[dim + 1 :])
        return replace(self, size=size, offset=self.offset + start * self.stride[dim])


def _over(value: Value, first: int, second: int) -> tuple[int, ...]:
    """Strides over the batch loops and four more; ``first`` and ``second`` of these are the last two dimensions."""
    own = [0] * 4
    own[first], own[second] = value.stride[-2:]
    return (*value.stride[:-2], *own)


def dimension(dim: int, x: Value) -> int:
    """``dim`` counted from the front. One out of range is left to the fallback, which raises PyTorch's own error."""
    rank = len(x.size)
    if not -rank <= dim < rank:
        raise Unsupported(f"dimension {dim} of a tensor with {rank} dimensions")
    return dim % rank


def broadcast(sizes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The size that operands of these sizes broadcast to."""
    rank = max((len(size) for size in sizes), default=0)
    found = [1] * rank
    for size in sizes:
        for i, n in enumerate(size, rank - len(size)):
            if n != 1:
                found[i] = n
    return tuple(found)


@dataclass(frozen=True)
class HostNumbers:
    """A row of integers on the host, during lowering: runtime scalars of the kernel, from ``first`` on."""

    first: int
    count: int

    def scalars(self) -> list[RuntimeScalar]:
        return [RuntimeScalar(self.first + i) for i in range(self.count)]


@dataclass
class Builder:
    """Adds loop ops to a kernel. ``meta`` has the sizes, strides and dtype of what the current ``op`` returns."""

    kernel: Kernel = field(default_factory=lambda: Kernel("kernel", {}, []))
    source: str = ""
    aten: str = ""
    nodes: tuple[str, ...] = ()
    hints: dict[str, Any] = field(default_factory=dict)
    op: Any = None
    meta: Any = None
    root: Value | None = None  # for as_strided: the value whose memory its offset counts in; None: an input
    offsets: dict[str, int] = field(default_factory=dict)  # of inputs: their storage offset when they were traced
    filled: dict[str, float] = field(default_factory=dict)  # buffers that hold one number in all elements

    def host_numbers(self, count: int) -> HostNumbers:
        """The next row of numbers that a call gives."""
        first = sum(self.kernel.numbers)
        self.kernel.numbers = (*self.kernel.numbers, count)
        return HostNumbers(first, count)

    # --- buffers

    def empty(self, size: Sequence[int], dtype: torch.dtype, stride: Sequence[int] | None = None) -> Value:
        """A new internal buffer."""
        if stride is not None and not _dense(size, stride):
            stride = None
        buffer = self.kernel.internal(dtype, tuple(size), None if stride is None else tuple(stride), prefix="buf")
        return Value(buffer.name, dtype, buffer.size, buffer.stride)

    def like_meta(self) -> Value:
        """A new buffer for the current node's result."""
        return self.empty(self.meta.shape, self.meta.dtype, self.meta.stride())

    def storage_offset(self, value: Value) -> int:
        """Where the buffer of a value begins in its storage."""
        return self.offsets.get(value.buffer, 0)

    def buffer(self, value: Value) -> Buffer:
        return self.kernel.buffers[value.buffer]

    def add(self, name: str, sizes: Sequence[int], out: Access, ins: Sequence[Access | Constant], **more: Any) -> None:
        """Adds one loop op, unless its iteration space is empty."""
        if 0 in sizes:
            return
        checked = self.kernel.buffers[out.buffer].dtype == torch.int64
        self.filled.pop(out.buffer, None)
        origin: dict[str, Any] = {"source": self.source, "aten": self.aten, "nodes": self.nodes}
        op = LoopOp(name, tuple(sizes), out, tuple(ins), hints=self.hints, checked=checked, **origin, **more)
        self.kernel.ops.append(op)

    # --- pointwise

    def pointwise(
        self,
        name: str,
        *inputs: Value | Number,
        dtype: torch.dtype,
        parameters: Sequence[float] = (),
        out: Value | None = None,
        stride: Sequence[int] | None = None,
    ) -> Value:
        """``name`` of the op table over broadcast inputs, rounded into ``dtype``."""
        inputs = tuple(v if isinstance(v, Value) else _as_operand(v, dtype) for v in inputs)
        size = out.size if out else broadcast([v.size for v in inputs if isinstance(v, Value)])
        operands = self._operands(name, inputs)
        given = "integer" if any(is_integer(o.dtype) for o in operands[-1:]) else "real"
        result = TILE_OPS.get((name, given))
        if result is None:
            raise Unsupported(f"the card has no {name} for {', '.join(str(o.dtype) for o in operands)}")
        if (result == "integer") != is_integer(dtype):
            middle = torch.int64 if result == "integer" else torch.float32
            return self.cast(self.pointwise(name, *inputs, dtype=middle, parameters=parameters), dtype, out=out)
        if out is None:
            out = self.empty(size, dtype, stride)
        ins = [o.expand(size).access() if isinstance(o, Value) else o for o in operands]
        self.add(name, size, out.access(), ins, parameters=tuple(in_loop_ir(p) for p in parameters))
        return out

    def _operands(self, name: str, inputs: Sequence[Value | Number]) -> list[Value | Constant]:
        """The inputs as operands of one kind: all integer, or all real (bool is real on the card)."""
        first = 1 if name == "where" else 0  # its first input, the condition, is bool in both cases
        chosen = inputs[first:]
        real = any(isinstance(v, float) or (isinstance(v, Value) and not is_integer(v.dtype)) for v in chosen)
        bools = all(isinstance(v, bool) or (isinstance(v, Value) and v.dtype == torch.bool) for v in chosen)
        if not bools and not any(_floating(v) for v in chosen) and (name, "integer") in TILE_OPS:
            real = False  # integers mixed with bools
        real = real or (name, "integer") not in TILE_OPS
        if not real:
            inputs = [*inputs[:first], *self._as_common_integers(chosen)]
        if any(isinstance(v, Value) and v.buffer not in self.filled for v in inputs):
            inputs = [self.filled.get(v.buffer, v) if isinstance(v, Value) else v for v in inputs]
        wanted = torch.float32 if real else torch.int64
        found: list[Value | Constant] = []
        for position, v in enumerate(inputs):
            if not isinstance(v, Value):
                found.append(Constant(in_loop_ir(v), wanted))
            elif position < first or is_integer(v.dtype) != real:
                found.append(v)
            else:
                found.append(self.cast(v, wanted))
        return found

    def _as_common_integers(self, inputs: Sequence[Value | Number]) -> list[Value | Number]:
        """The inputs of an integer op; numbers and 0-dim tensors take the others' dtype, in which they may wrap."""
        integers = [v for v in inputs if isinstance(v, Value) and is_integer(v.dtype)]
        common = [v.dtype for v in integers if v.size] or [v.dtype for v in integers] or [torch.int64]
        dtype = reduce(torch.promote_types, common)

        def kept(v: Value | Number) -> Value | Number:
            if is_open(v) and dtype == torch.int64:
                return v
            if not isinstance(v, Value):
                return wrapped(int(v), dtype)
            narrow = not v.size and is_integer(v.dtype) and torch.promote_types(v.dtype, dtype) != dtype
            return self.cast(v, dtype) if narrow else v

        return [kept(v) for v in inputs]

    def cast(
        self, x: Value, dtype: torch.dtype, out: Value | None = None, stride: Sequence[int] | None = None
    ) -> Value:
        """``x.to(dtype)``; adds an op only if values may change."""
        if dtype == torch.bool and x.dtype != torch.bool:
            return self.pointwise("ne", x, 0 if is_integer(x.dtype) else 0.0, dtype=dtype, out=out, stride=stride)
        if out is None and (stride is None or tuple(stride) == x.stride) and _holds(self.buffer(x).dtype, dtype):
            return replace(x, dtype=dtype)
        given, wanted = is_integer(x.dtype), is_integer(dtype)
        narrow = "to_integer" if dtype == torch.int64 else "to_int32"
        name = "copy" if given == wanted else "to_real" if given else narrow
        if out is None:
            out = self.empty(x.size, dtype, stride)
        self.add(name, out.size, out.access(), [x.expand(out.size).access()])
        return out

    def copy(self, x: Value, out: Value | None = None, stride: Sequence[int] | None = None) -> Value:
        """The values of ``x`` in memory of their own, or in ``out``."""
        if out is None:
            out = self.empty(x.size, x.dtype, stride)
        if x.dtype != out.dtype and _C.get_device_dtype(x.dtype) != _C.get_device_dtype(out.dtype):
            return self.cast(x, out.dtype, out=out)
        if out.dtype == torch.bool and x.dtype != torch.bool:
            return self.cast(x, torch.bool, out=out)
        self.add("copy", out.size, out.access(), [x.expand(out.size).access()])
        return out

    def kept_as(self, x: Value, dtype: torch.dtype) -> Value:
        """``x`` in a buffer of exactly this dtype's format, for ops that copy bytes."""
        x = self.cast(x, dtype)
        same = _C.get_device_dtype(self.buffer(x).dtype) == _C.get_device_dtype(dtype)
        return x if same else self.copy(x)

    def contiguous(self, x: Value) -> Value:
        return x if x.stride == contiguous(x.size) else self.copy(x)

    def fill(self, value: Number, out: Value) -> Value:
        value = as_kept(value, out.dtype)
        self.add("copy", out.size, out.access(), [Constant(in_loop_ir(value), out.dtype)])
        if not is_open(value) and _exact(value, out.dtype) and self._is_whole(out):
            self.filled[out.buffer] = value
        return out

    def _is_whole(self, value: Value) -> bool:
        buffer = self.buffer(value)
        return buffer.kind == "internal" and value.numel == prod(buffer.size)

    def full(self, size: Sequence[int], value: Number, dtype: torch.dtype) -> Value:
        return self.fill(value, self.empty(size, dtype))

    def iota(self, size: Sequence[int], start: int, steps: Sequence[int], dtype: torch.dtype) -> Value:
        """``start + dot(point, steps)``."""
        if prod(size) == 1:
            return self.full(size, start, dtype)
        out = self.empty(size, dtype)
        self.add("iota", out.size, out.access(), [], parameters=(float(start), *map(float, steps)))
        return out

    # --- folds

    def total(
        self, name: str, x: Value, dims: Sequence[int], keepdim: bool, dtype: torch.dtype, of: torch.dtype | None = None
    ) -> Value:
        """A sum or mean over ``dims``. fp32 sums of fp32 elements (``of``, by default ``dtype``) are added in fp64."""
        wide = dtype in SINGLE and (of is None or of in SINGLE)
        return self.reduce(f"wide_{name}" if wide else name, x, dims, keepdim, dtype)

    def reduce(
        self, name: str, x: Value, dims: Sequence[int], keepdim: bool, dtype: torch.dtype, factor: float | None = None
    ) -> Value:
        """A fold over ``dims`` (all if empty). ``factor`` multiplies means and variances; 1 / n by default."""
        rank = len(x.size)
        dims = sorted({dimension(d, x) for d in dims}) if dims else list(range(rank))
        kept = [i for i in range(rank) if i not in dims]
        folded = prod(x.size[i] for i in dims)
        if is_integer(x.dtype) != is_integer(dtype) and dtype != torch.bool:
            x = self.cast(x, dtype)
        size = [1 if i in dims else x.size[i] for i in range(rank)]
        result = self.empty(size, dtype)
        if folded == 0:
            self.fill(float("nan") if OPS[name].parameters else OPS[name].start or 0.0, result)
        elif folded == 1:
            self.copy(x, result)
        else:
            strides = tuple(result.stride[i] for i in kept) + (0,) * len(dims)
            order = [*kept, *dims]
            scale = (1.0 / folded if factor is None else factor,) if OPS[name].parameters else ()
            self.add(
                name,
                [x.size[i] for i in order],
                Access(result.buffer, strides, result.offset),
                [x.permute(order).access()],
                reduced=len(dims),
                parameters=scale,
            )
        return result if keepdim else result.permute(kept)

    def along(self, name: str, x: Value, dim: int, dtype: torch.dtype) -> Value:
        """A scan along ``dim``: every partial fold, or the position of each partial extreme."""
        positions = OPS[name].function in ("argmax", "argmin")
        if not x.size:
            return self.full([], 0, dtype) if positions else self.cast(x, dtype)
        out = self.empty(x.size, dtype)
        dim = dimension(dim, x)
        order = [i for i in range(len(x.size)) if i != dim] + [dim]
        if is_integer(x.dtype) != is_integer(dtype) and not positions:
            x = self.cast(x, dtype)
        self.add(name, [x.size[i] for i in order], out.permute(order).access(), [x.permute(order).access()])
        return out

    def position(self, name: str, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
        """argmax, argmin: the first position over ``dims``, int64."""
        rank = len(x.size)
        dims = [dimension(d, x) for d in dims]
        kept = [i for i in range(rank) if i not in dims]
        result = self.empty([1 if i in dims else x.size[i] for i in range(rank)], torch.int64)
        if prod(x.size[i] for i in dims) == 1:
            self.fill(0, result)
        else:
            order = [*kept, *dims]
            strides = tuple(result.stride[i] for i in kept) + (0,) * len(dims)
            self.add(
                name,
                [x.size[i] for i in order],
                Access(result.buffer, strides),
                [x.permute(order).access()],
                reduced=len(dims),
            )
        return result if keepdim else result.permute(kept)

    def topk(self, name: str, x: Value, k: int, dim: int, largest: bool) -> Value:
        """topkvalue or topkindex along ``dim``."""
        rank, dim = len(x.size), dimension(dim, x)
        order = [i for i in range(rank) if i != dim]
        dtype = self.buffer(x).dtype if name == "topkvalue" else torch.int64
        out = self.empty([k if i == dim else n for i, n in enumerate(x.size)], dtype)
        sizes = [*(x.size[i] for i in order), k, x.size[dim]]
        written = out.permute([*order, dim]).stride
        read = x.permute([*order, dim]).stride
        self.add(
            name,
            sizes,
            Access(out.buffer, (*written, 0)),
            [Access(x.buffer, (*read[:-1], 0, read[-1]), x.offset)],
            reduced=1,
            parameters=(float(largest),),
        )
        return replace(out, dtype=x.dtype) if name == "topkvalue" else out

    # --- matrices

    def matmul(self, a: Value, b: Value, dtype: torch.dtype) -> Value:
        """``a [..., m, k] @ b [..., k, n]``, accumulated in fp32 and rounded once; integers in 64 bits."""
        if a.dtype == torch.bool or a.dtype != b.dtype or a.dtype.itemsize == 1 and a.dtype.is_floating_point:
            raise Unsupported(
                f"no matrix product of {a.dtype} and {b.dtype}"
            )  # the fallback raises PyTorch's own error
        batch = broadcast([a.size[:-2], b.size[:-2]])
        m, k, n = a.size[-2], a.size[-1], b.size[-1]
        out = self.empty([*batch, m, n], dtype)
        if k == 0:
            return self.fill(0.0, out)
        a, b = a.expand([*batch, m, k]), b.expand([*batch, k, n])
        left = (*a.stride[:-2], a.stride[-2], 0, a.stride[-1])
        right = (*b.stride[:-2], 0, b.stride[-1], b.stride[-2])
        written = (*out.stride[:-2], out.stride[-2], out.stride[-1], 0)
        self.add(
            "matmul",
            [*batch, m, n, k],
            Access(out.buffer, written, out.offset),
            [Access(a.buffer, left, a.offset), Access(b.buffer, right, b.offset)],
            reduced=1,
        )
        return out

    def attention(self, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float) -> Value:
        """``softmax(scale * q k^T + mask) v``, in fp32 and rounded once; several heads of ``q`` may share keys."""
        out = self.like_meta()
        group = q.size[-3] // k.size[-3] if len(q.size) > 2 and k.size[-3] else 1
        given = [each for each in (q, k, v, mask) if each is not None]
        if group > 1:
            given = [each.grouped(q.size[-3], group) for each in given]
            written = out.grouped(q.size[-3], group)
        else:
            written = out
        batch = written.size[:-2]
        rows, depth, length, width = q.size[-2], q.size[-1], k.size[-2], v.size[-1]
        spread = [each.expand([*batch, *each.size[-2:]]) for each in given[:3]]
        spread += [each.expand([*batch, rows, length]) for each in given[3:]]
        # Loops are [batch ..., rows, width, length, depth]; for each operand, the loops of its last two dimensions.
        along = ((0, 3), (2, 3), (2, 1), (0, 2))
        ins: list[Access | Constant] = [
            Access(each.buffer, _over(each, *at), each.offset) for each, at in zip(spread, along, strict=False)
        ]
        if mask is None:
            ins.append(Constant(0.0, torch.float32))
        chooses = mask is not None and mask.dtype == torch.bool
        self.add(
            "attention",
            [*batch, rows, width, length, depth],
            Access(written.buffer, _over(written, 0, 1), written.offset),
            ins,
            reduced=2,
            parameters=(in_loop_ir(scale), float(causal), float(chooses)),
        )
        return out

    def paged_attention(
        self,
        q: Value,
        keys: Value,
        values: Value,
        table: Value,
        sinks: Value | None,
        slopes: Value | None,
        numbers: Sequence[Parameter],
    ) -> Value:
        """Attention over pages that a table names: ops/paged_attention.py. ``numbers``: the step's, in its order."""
        out = self.like_meta()
        (tokens, heads, depth), (pages, page, key_heads, width) = q.size, values.size
        requests, most = table.size
        group = heads // key_heads
        sizes = (key_heads, group, tokens, width, requests, most, page, depth)

        def over(value: Value, **strides: int) -> Access:
            loops = ("head", "group", "token", "width", "request", "page", "slot", "depth")
            return Access(value.buffer, tuple(strides.get(loop, 0) for loop in loops), value.offset)

        def rows(value: Value, **more: int) -> Access:
            token, head = value.stride[:2]
            return over(value, head=head * group, group=head, token=token, **more)

        def of_heads(value: Value | None, otherwise: float) -> Access | Constant:
            if value is None:
                return Constant(otherwise, torch.float32)
            return over(value, head=value.stride[0] * group, group=value.stride[0])

        self.add(
            "paged_attention",
            sizes,
            rows(out, width=out.stride[2]),
            [
                rows(q, depth=q.stride[2]),
                over(keys, head=keys.stride[2], slot=keys.stride[1], depth=keys.stride[3]),
                over(values, head=values.stride[2], slot=values.stride[1], width=values.stride[3]),
                over(table, request=table.stride[0], page=table.stride[1]),
                of_heads(sinks, -inf),
                of_heads(slopes, 0.0),
            ],
            reduced=4,
            parameters=tuple(numbers),
            indirect=(Indirect(3, pages, keys.stride[0]), Indirect(3, pages, values.stride[0])),
        )
        return out

    # --- indices

    def gather(
        self, table: Access, sizes: Sequence[int], indices: Sequence[tuple[Value, int, int]], dtype: torch.dtype
    ) -> Value:
        """``out[p] = table[p + sum(index[p] * stride)]``; indices as (values over ``sizes``, extent, table stride)."""
        out = self.empty(sizes, self.kernel.buffers[table.buffer].dtype)
        ins = [table, *(index.expand(sizes).access() for index, _, _ in indices)]
        jumps = tuple(Indirect(i + 1, extent, stride) for i, (_, extent, stride) in enumerate(indices))
        self.add("gather", sizes, out.access(), ins, indirect=jumps)
        return replace(out, dtype=dtype)

    def scatter(
        self,
        name: str,
        table: Access,
        sizes: Sequence[int],
        indices: Sequence[tuple[Value, int, int]],
        values: Value | Number,
    ) -> None:
        """``table[p + sum(index[p] * stride)] = values[p]``, or combined with the old element."""
        dtype = self.kernel.buffers[table.buffer].dtype
        if not isinstance(values, Value):
            values = self.full([], values, dtype)
        values = self.kept_as(values, dtype)
        ins = [values.expand(sizes).access(), *(index.expand(sizes).access() for index, _, _ in indices)]
        jumps = tuple(Indirect(i + 1, extent, stride) for i, (_, extent, stride) in enumerate(indices))
        self.add(name, sizes, table, ins, indirect=jumps)


def _holds(kept: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether a buffer of dtype ``kept`` represents all values of ``dtype`` that it was given, unchanged."""
    return _C.get_device_dtype(kept) == _C.get_device_dtype(dtype) or (
        dtype == torch.float32 and kept in (torch.float16, torch.bfloat16, torch.bool)
    )


def wrapped(value: int, dtype: torch.dtype) -> int:
    """A number wrapped around into the range of an integer dtype."""
    limits = torch.iinfo(dtype)
    return (value - limits.min) % 2**limits.bits + limits.min


def as_kept(value: Any, dtype: torch.dtype) -> Any:
    """A number after rounding to what the card stores for this dtype."""
    if is_open(value):
        return value.kept_as(dtype)
    return float(int(value)) if is_integer(dtype) else _C.round_to_device(value, dtype)


def fitting(value: Any, dtype: torch.dtype) -> Any:
    """A number that becomes an element of a dtype. One out of range is refused: the fallback raises PyTorch's error."""
    if isinstance(value, Value) or value is None:
        return value
    if dtype.is_floating_point:
        if not is_open(value) and torch.finfo(dtype).max < abs(value) < inf:  # a runtime scalar fits
            raise Unsupported(f"{value} does not fit {dtype}")
        return value
    if not is_integer(dtype) or isinstance(value, float) or (is_open(value) and dtype == torch.int64):  # no check
        return value
    limits = torch.iinfo(dtype)
    if not (limits.min or -limits.max) <= value <= limits.max:
        raise Unsupported(f"{value} does not fit {dtype}")
    return wrapped(int(value), dtype)


def _as_operand(value: Any, dtype: torch.dtype) -> Any:
    """A number as an operand: unrounded, except that the dtype's largest number becomes the largest one of the card."""
    if dtype not in (torch.float16, torch.bfloat16) or is_open(value) or abs(value) != torch.finfo(dtype).max:
        return value
    return as_kept(value, dtype)


def _exact(value: Number, dtype: torch.dtype) -> bool:
    """Whether the card stores this number exactly."""
    if not isfinite(value) or is_integer(dtype):
        return True
    bits = 24 if dtype == torch.float32 else 10
    mantissa, exponent = frexp(value)
    return (mantissa * 2**bits).is_integer() and abs(exponent) < 30


def _floating(value: Value | Number) -> bool:
    if isinstance(value, Value):
        return value.dtype.is_floating_point
    return isinstance(value, float)


def _dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements fill their memory without gaps and without overlap."""
    expected = 1
    for n, s in sorted(((n, s) for n, s in zip(size, stride, strict=True) if n > 1), key=lambda entry: entry[1]):
        if s != expected:
            return False
        expected *= n
    return 0 not in size
