"""Calls that the card does not run: refused ones go to the CPU fallback, misused ones raise PyTorch's error."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import inf

import torch
from torch._ops import OpOverload

from .._inductor.errors import Unsupported
from .call import Call, Results, dtypes_of, written_arguments
from .results import apply_to_meta

aten = torch.ops.aten


class Misused(Exception):
    """A call that PyTorch refuses on every device."""


@cache
def never_native(op: OpOverload, functional: OpOverload) -> str:
    """Why no call of this op can run on the card; empty if some can."""
    if torch.Tag.nondeterministic_seeded in op.tags:
        return "Random numbers are drawn on the host."
    if torch.Tag.dynamic_output_shape in op.tags or torch.Tag.data_dependent_output in op.tags:
        return "Its result's shape, or what the host does next, depends on values."
    returns, written = functional._schema.returns, written_arguments(op)
    if any(str(result.type) != "Tensor" or result.alias_info is not None for result in returns):
        return "It returns something other than new tensors."
    if written and (
        len(written) != len(returns) or any(str(op._schema.arguments[i].type) != "Tensor" for i in written)
    ):
        return "It writes into other arguments than its results."
    return ""


def check_casts(call: Call, results: Results) -> None:
    """Refuses a result that PyTorch does not cast to the dtype of the tensor that it is written into."""
    if call.written and dtypes_of([call.tensors[i] for i in call.written]) != dtypes_of(results):
        apply_to_meta(call, call.op)
        if call.writes_into_out:
            _apply_to_zeros(call, call.op)


def _apply_to_zeros(call: Call, op: OpOverload) -> None:
    """Runs the op on the host: only its kernels know which dtypes ``out=`` may have."""
    try:
        call.apply(op, [torch.zeros(call.tensors[i].size(), dtype=call.tensors[i].dtype) for i in call.inputs])
    except Exception as error:
        raise Unsupported(f"{type(error).__name__}: {error}") from error


# --- overlapping memory

_SHARED = (
    "unsupported operation: {} to a single memory location. Please clone() the tensor before performing the operation."
)
# Ops whose result may not overlap any input. A pointwise op may write into one of its inputs itself.
_MOVING = {aten.cat, aten.gather, aten.index_select, aten.take}


def check_written(call: Call) -> None:
    """Refuses to write into a tensor whose elements overlap, or that overlaps another tensor of the call."""
    targets = [call.tensors[i] for i in call.written]
    if any(torch._debug_has_internal_overlap(target) == 1 for target in targets):
        if call.writes_into_out:
            raise Misused(_SHARED.format("more than one element of the written-to tensor refers"))
        raise Unsupported("Elements of the written tensor share memory.")
    moves = call.writes_into_out and call.functional.overloadpacket in _MOVING
    if (moves or torch.Tag.pointwise in call.functional.tags) and any(
        _overlaps_others(call, written, allow_same_view=not moves) for written in call.written
    ):
        raise Misused(_SHARED.format("some elements of the input tensor and the written-to tensor refer"))


def is_shared(call: Call, written: int) -> bool:
    """Whether the call has another view of the written memory: the result then needs a tensor of its own first."""
    memory = call.placements[written][2]
    same = [i for i, (_, _, other) in enumerate(call.placements) if other == memory]
    return any(call.first[i] != call.first[written] for i in same)


def _overlaps_others(call: Call, written: int, allow_same_view: bool) -> bool:
    """Whether another tensor of the call overlaps the written one. As in PyTorch, views with gaps are not examined."""
    target, memory = call.tensors[written], call.placements[written][2]
    others = [
        tensor
        for i, (tensor, (_, _, other), first) in enumerate(zip(call.tensors, call.placements, call.first, strict=True))
        if other == memory
        if (first != call.first[written] if allow_same_view else i != written)
    ]
    return any(_is_dense(each) and _is_dense(target) and _ranges_overlap(each, target) for each in others)


def _is_dense(tensor: torch.Tensor) -> bool:
    return torch._debug_has_internal_overlap(tensor) == 0


def _ranges_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    starts = a.storage_offset(), b.storage_offset()
    return max(starts) < min(starts[0] + a.numel(), starts[1] + b.numel())


# --- dtypes and numbers that an op is not defined for

_HALVES = {torch.float16: torch.float32, torch.bfloat16: torch.float32}

# What norms keep for their backward passes: in fp32 on every device but the CPU, whatever the dtype of the input.
_STATISTICS = {"mean", "rstd", "save_mean", "save_invstd"}


def check_with_host(call: Call) -> None:
    """Refuses a call that PyTorch refuses on the CPU because of a dtype, of mixed dtypes, or of a number out of range.

    Only the CPU's kernels know these cases, so the call is tried there on few elements. A kernel that the CPU lacks for
    halves is no reason to refuse: if the same call works in float32, halves are fine.
    """
    in_range = not any(torch.finfo(torch.float16).max < abs(number) < inf for number in _numbers(call))
    replaced = _HALVES if in_range else {}
    given = {tensor.dtype for tensor in call.tensors}
    if given - {torch.float32, *replaced}:
        as_float = {**_HALVES, call.tensors[0].dtype: torch.float32}
        if _fails_on_host(call, replaced) and not _fails_on_host(call, as_float):
            raise Unsupported(f"PyTorch refuses {call.tensors[0].dtype}, or a number of the call.")
    if torch.int32 in given:  # some ops take positions as int64 only
        longer = {**replaced, torch.int32: torch.int64}
        if _fails_on_host(call, replaced) and not _fails_on_host(call, longer):
            raise Unsupported("PyTorch refuses torch.int32.")
    mixed = _dtypes_of_arguments(call) & {torch.float32, *_HALVES}
    if len(mixed) > 1 and _fails_on_host(call, {}) and not _fails_on_host(call, _HALVES):
        raise Unsupported(f"PyTorch refuses a mix of {' and '.join(sorted(map(str, mixed)))}.")


def _dtypes_of_arguments(call: Call) -> set[torch.dtype]:
    arguments = zip(call.op._schema.arguments, call.values, strict=True)
    statistics = {id(value) for each, value in arguments if each.name in _STATISTICS}
    return {tensor.dtype for tensor in call.tensors if id(tensor) not in statistics}


def _numbers(call: Call) -> list[int | float]:
    return [value for value in call.values if isinstance(value, int | float)]


def _fails_on_host(call: Call, dtypes: Mapping[torch.dtype, torch.dtype]) -> bool:
    """Whether the call fails on the CPU with few elements, if all are 1 and if all are 0. ``dtypes`` are replaced."""
    few = sum(tensor.numel() for tensor in call.tensors) <= 4096

    def fails(number: int) -> bool:
        given = [call.tensors[i] for i in call.inputs]
        sizes = [tensor.size() if few else [min(n, 2) for n in tensor.size()] for tensor in given]
        pairs = zip(sizes, given, strict=True)
        try:
            call.apply(
                call.functional,
                [torch.full(size, number).to(dtypes.get(tensor.dtype, tensor.dtype)) for size, tensor in pairs],
            )
        except Exception as error:
            return "ZeroDivisionError" not in str(error)  # depends on values, and the card reports it itself
        return False

    return fails(1) and fails(0)
