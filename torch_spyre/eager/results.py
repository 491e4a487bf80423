"""Sizes, strides and dtypes of a call's results, as meta tensors: what the op gives on the CPU."""

from __future__ import annotations

import functools
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from .._inductor.errors import Unsupported
from .call import Call, Results, dtypes_of, empty_like

aten = torch.ops.aten


class Float64(Exception):
    """A result would be float64, which the card cannot store."""


def results_of(call: Call) -> Results:
    results: Results
    if _is_structured_pointwise(call.functional) and not call.has_wrapped_numbers():
        results = [_structured_pointwise_result(call)]
    else:
        results = apply_to_meta(call, call.functional, as_numbers=call.has_wrapped_numbers())
        if call.functional.overloadpacket in _ITERATED:
            results = [_with_strides_of_iterator(call, results[0])]
    if torch.float64 in dtypes_of(results) and not call.written:
        raise Float64
    return results


def apply_to_meta(call: Call, op: OpOverload, as_numbers: bool = True) -> Results:
    """Calls ``op`` on meta tensors. A call that PyTorch refuses is left to the fallback, which raises that error."""
    try:
        return call.apply(op, _meta_inputs(call), as_numbers)
    except Exception as error:
        raise Unsupported(f"{type(error).__name__}: {error}") from error


def _meta_inputs(call: Call) -> list[torch.Tensor]:
    return [empty_like(call.tensors[i], "meta") for i in call.inputs]


# --- structured ops: PyTorch has one C++ definition of their results for all devices

_STRUCTURED = torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional


@cache
def has_structured_kernel(op: OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _STRUCTURED)


@cache
def _is_structured_pointwise(op: OpOverload) -> bool:
    """Whether the structured definition gives the final results. (Losses reduce theirs afterwards.)"""
    return torch.Tag.pointwise in op.tags and has_structured_kernel(op)


class _ResultsOnly(TorchDispatchMode):
    """Stops structured ops when their results are allocated, before anything is computed.

    PyTorch's meta kernels in Python are no substitute: they import Dynamo, and get the strides wrong in some cases.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # Dynamo is off here already; skipping it would import it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not func._schema.is_mutable:
            return func(*args, **kwargs)
        return next(kwargs[each.name] for each in func._schema.arguments if each.is_out)


def _structured_pointwise_result(call: Call) -> torch.Tensor:
    inputs = _meta_inputs(call)
    result = _structured_result(call, inputs)
    if len({each.dtype for each in inputs}) == 1:
        return result
    # The CPU converts operands to their common dtype first, and takes the strides from the converted ones.
    common = functools.reduce(lambda a, b: b.new_empty(b.size(), dtype=torch.result_type(a, b)), inputs).dtype
    like = _structured_result(call, [each.to(common) for each in inputs])
    return torch.empty_strided(result.size(), like.stride(), dtype=result.dtype, device="meta")


def _structured_result(call: Call, inputs: list[torch.Tensor]) -> torch.Tensor:
    args, kwargs = call.arguments(call.functional, inputs, as_numbers=False)
    try:
        with _ResultsOnly():
            result: torch.Tensor = call.functional._op_dk(_STRUCTURED, *args, **kwargs)
            return result
    except Exception as error:
        raise Unsupported(f"{type(error).__name__}: {error}") from error


# Ops that use PyTorch's TensorIterator on the CPU, but are not structured (or not for every device); and structured ops
# of one, two and three tensors, whose results have the same strides.
_ITERATED = {
    getattr(aten, name)
    for name in (
        *("abs", "relu", "hardswish", "isnan", "isinf", "floor_divide", "where"),
        *("logical_not", "logical_and", "logical_or", "logical_xor"),
    )
}
_LIKE = (aten.exp.default, aten.add.Tensor, aten.addcmul.default)


def _with_strides_of_iterator(call: Call, result: torch.Tensor | None) -> torch.Tensor:
    """The result with the strides that PyTorch's TensorIterator gives it: those of a structured op on float tensors."""
    assert result is not None
    given = [t for t in call.tensor_arguments()[: len(_LIKE)] if isinstance(t, torch.Tensor)]
    inputs = [torch.empty_strided(t.size(), t.stride(), device="meta") for t in given if id(t) not in call.numbers]
    with _ResultsOnly():
        like = _LIKE[len(inputs) - 1]._op_dk(_STRUCTURED, *inputs)
    return torch.empty_strided(like.size(), like.stride(), dtype=result.dtype, device="meta")
