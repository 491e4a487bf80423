"""From an eager call to the description of its kernel: the steps in their order.

``_C`` asks :func:`compile_call` once per call signature and keeps the answer; later calls run without Python.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from .. import _C
from .._inductor.errors import FrontendOnly, Unsupported
from ..compile_records import timed
from ..compile_time import compiling
from ..failures import during
from ..kernel_types import EagerKernelDescription, OutputDescription
from ..signals import whole_imports
from .call import Call, Results, functional_overload
from .checks import Misused, check_casts, check_with_host, check_written, is_shared, never_native
from .descriptions import compile_graph, description, new_output
from .graph import single_op_graph, traced_graph
from .results import Float64, results_of

if TYPE_CHECKING:
    from .._inductor.loop_ir.runtime_scalars import Recipe

_one_at_a_time = threading.RLock()

# A RuntimeError: Python's operators would take a TypeError for "unsupported operand types".
_NO_FLOAT64 = (
    "Spyre backend does not support dtype torch.float64: the card has no such number format, and {} of these would "
    "give it. Convert first, for example with .to(torch.float32)."
)


def compile_call(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], scalar_positions: Sequence[int]
) -> EagerKernelDescription | str:
    """What ``_C`` needs to run calls with this signature, or the reason why the card cannot.

    The arguments at ``scalar_positions`` are numbers that differ between calls with this signature. The kernel takes
    them as runtime scalars if it can; otherwise it holds for the numbers of this call alone.
    """
    # Dynamo may be running a frame that it gave up on: it must not trace the compiler. FX traces one graph at a time.
    before = torch._C._dynamo.eval_frame.set_eval_frame(None)
    try:
        named = during("compile_frontend", op=str(op))
        with whole_imports(), compiling(), timed("pipeline:eager"), _one_at_a_time, named:
            return _compile_call(op, args, kwargs, scalar_positions)
    finally:
        torch._C._dynamo.eval_frame.set_eval_frame(before)


def _compile_call(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], scalar_positions: Sequence[int]
) -> EagerKernelDescription | str:
    functional = functional_overload(op)
    if functional is None:
        return f"{op} has no functional form."
    if why := never_native(op, functional):
        return why
    try:
        call = Call(op, functional, (*args, *kwargs.values()), scalar_positions)
        if not call.tensors:
            return "It takes no tensor."
        with torch.no_grad():
            return _describe(call)
    except Unsupported as refusal:
        return str(refusal)
    except FrontendOnly:
        raise
    except Misused as misuse:
        raise RuntimeError(str(misuse)) from None
    except Float64:
        raise RuntimeError(_NO_FLOAT64.format(op)) from None
    except Exception as error:
        raise RuntimeError(f"compiling {op} for the card failed: {type(error).__name__}: {error}") from error


def _describe(call: Call) -> EagerKernelDescription:
    results = results_of(call)
    resize = _resized(call, results)
    if resize and not call.writes_into_out:
        raise Unsupported("The tensor that it changes in place would get another size.")
    check_casts(call, results)
    if resize:
        return description(resize=resize)
    check_written(call)
    check_with_host(call)
    returns = _returns(call, results)
    if not any(result is not None and result.numel() for result in results):  # nothing to compute
        new = [result for result in results if result is not None and not call.written]
        return description(outputs=[new_output(result) for result in new], returns=returns)
    separate = [i for i in call.written if is_shared(call, i)]
    plan, outputs, recipes = _compile(call, results, separate)
    return description(
        plan=plan,
        runtime_scalars=recipes,
        arguments=[i for i in call.inputs if call.tensors[i].numel()],
        outputs=outputs,
        copies=[(target, output) for output, target in enumerate(separate)],
        returns=returns,
    )


def _compile(
    call: Call, results: Results, separate: Sequence[int]
) -> tuple[_C.JobPlan | None, list[OutputDescription], list[Recipe] | None]:
    """The job plan, its outputs, and the runtime scalars that its launches take."""
    from .._inductor.loop_ir.runtime_scalars import ValueNeeded, given_to_launch, stand_ins

    inputs = [call.tensors[i] for i in call.inputs]
    if not call.is_lowered_whole():
        return *compile_graph(call.functional, traced_graph(call, results, separate), inputs), None
    # The numbers of a pointwise op change values only, and not the shape of the result.
    if call.scalar_positions and torch.Tag.pointwise in call.functional.tags:
        schema = call.op._schema.arguments
        numbers = [call.numbers.get(id(call.values[i]), call.values[i]) for i in call.scalar_positions]
        scalars, recipes = stand_ins(numbers, [schema[i].default_value for i in call.scalar_positions])
        try:
            graph = single_op_graph(call, results, separate, dict(zip(call.scalar_positions, scalars, strict=True)))
            given = partial(given_to_launch, numbers, recipes)
            return *compile_graph(call.functional, graph, inputs, given), recipes
        except (ValueNeeded, Unsupported, TypeError):
            pass  # the kernel needs the numbers of this call
    return *compile_graph(call.functional, single_op_graph(call, results, separate, {}), inputs), None


def _resized(call: Call, results: Results) -> list[tuple[int, list[int], list[int]]]:
    """The tensors that get the size of their result: position, size, and strides (none: contiguous)."""
    wanted = [(i, result) for i, result in zip(call.written, results, strict=False) if result is not None]
    keeps_strides = torch.Tag.pointwise in call.functional.tags
    return [
        (i, list(result.size()), list(result.stride()) if keeps_strides else [])
        for i, result in wanted
        if call.tensors[i].size() != result.size()
    ]


def _returns(call: Call, results: Results) -> list[tuple[str, int] | None]:
    if call.written:
        return [("argument", i) for i in call.written]
    outputs = iter(range(len(results)))
    return [None if result is None else ("output", next(outputs)) for result in results]
