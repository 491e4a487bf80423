"""What only repeats, permutes or widens another value is not made: ops read the value itself.

Before: ``repeat_kv``, ``x.float()`` and ``x.transpose(...).contiguous()`` are copies. After: their readers walk the
original, with a stride of 0 where it was repeated; where they need a loop in two parts for that, it is split. Widening
is exact, so bits stay the same. Matrix products widen weights of one byte (int8, float8) themselves, as they read them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import prod

import torch

from ..._C import get_device_dtype
from ...ops.table import WIDENED_BY_MATMUL
from ..loop_ir import Access, Constant, Kernel, LoopOp
from ..loop_ir.affine import Dims, composed, dims_between
from .dead_code import dead_code

REAL = (torch.float16, torch.bfloat16, torch.float32)


def forward_copies(kernel: Kernel) -> None:
    """After: no op reads an internal copy where it could as well read the original."""
    written: dict[str, list[int]] = defaultdict(list)
    readers: dict[str, list[int]] = defaultdict(list)
    for at, op in enumerate(kernel.ops):
        written[op.out.buffer].append(at)
        for name in op.reads():
            readers[name].append(at)
    for at, copy in enumerate(kernel.ops):
        if len(written[copy.out.buffer]) != 1 or not _is_plain(kernel, copy):
            continue
        source = copy.ins[0]
        assert isinstance(source, Access)
        until = next((i for i in written[source.buffer] if i > at), len(kernel.ops))
        only_weights = _widens_bytes(kernel, copy, source)
        changed = {i: _reading(kernel.ops[i], copy, source, only_weights) for i in readers[copy.out.buffer]}
        if any(i > until or reader is None for i, reader in changed.items()):
            continue
        for i, reader in changed.items():
            assert reader is not None
            kernel.ops[i] = reader
            readers[source.buffer].append(i)
        readers[copy.out.buffer] = []
    dead_code(kernel)


def _is_plain(kernel: Kernel, copy: LoopOp) -> bool:
    """A copy that fills an internal buffer, and rounds nothing."""
    source = copy.ins[0] if copy.name in ("copy", "to_real") else None
    if not isinstance(source, Access) or copy.out.offset:
        return False
    target, original = kernel.buffers[copy.out.buffer], kernel.buffers[source.buffer]
    if target.kind != "internal" or prod(copy.sizes) != prod(target.size) or source.buffer == copy.out.buffer:
        return False
    same = get_device_dtype(target.dtype) == get_device_dtype(original.dtype)
    widens = target.dtype == torch.float32 and original.dtype in (torch.float16, torch.bfloat16)
    return same or widens or _widens_bytes(kernel, copy, source)


def _widens_bytes(kernel: Kernel, copy: LoopOp, source: Access) -> bool:
    return kernel.buffers[source.buffer].dtype in WIDENED_BY_MATMUL and kernel.buffers[copy.out.buffer].dtype in REAL


def _reading(op: LoopOp, copy: LoopOp, source: Access, only_weights: bool) -> LoopOp | None:
    """The op with the original in place of the copy, as the weights of a product only or as any operand; None where
    its loops do not fit."""
    if not op.row.is_dense or op.indirect or op.out.buffer == source.buffer:
        return None
    operands = [i for i, each in enumerate(op.ins) if isinstance(each, Access) and each.buffer == copy.out.buffer]
    if only_weights and (not op.row.is_matmul or operands != [1]):
        return None
    if op.row.is_move:
        return None
    dims = dims_between(copy.sizes, copy.out, source)
    op = _split(op, copy, dims)
    ins: list[Access | Constant] = []
    for access in op.ins:
        if isinstance(access, Access) and access.buffer == copy.out.buffer:
            found = composed(access, op.sizes, dims, source)
            if found is None:
                return None
            access = found
        ins.append(access)
    return replace(op, ins=tuple(ins))


def _split(op: LoopOp, copy: LoopOp, dims: Dims) -> LoopOp:
    """The op with loops divided where they pass from one dimension of the copy into the next."""
    own = {"matmul": 3, "attention": 4}.get(op.name, op.reduced)  # these stay as they are
    for access in op.ins:
        if not isinstance(access, Access) or access.buffer != copy.out.buffer:
            continue
        for loop in range(len(op.sizes) - own):
            stride, n = access.strides[loop], op.sizes[loop]
            inner = next((size for s, size, _ in dims if s == stride and size < n and n % size == 0), 0)
            if stride and n > 1 and inner > 1:
                return _split(_divided(op, loop, inner), copy, dims)
    return op


def _divided(op: LoopOp, loop: int, inner: int) -> LoopOp:
    def access(each: Access) -> Access:
        strides = list(each.strides)
        strides[loop : loop + 1] = [strides[loop] * inner, strides[loop]]
        return replace(each, strides=tuple(strides))

    sizes = list(op.sizes)
    sizes[loop : loop + 1] = [sizes[loop] // inner, inner]
    ins = tuple(access(each) if isinstance(each, Access) else each for each in op.ins)
    return replace(op, sizes=tuple(sizes), out=access(op.out), ins=ins)
