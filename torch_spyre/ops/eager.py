"""Eager ops on the card: a call becomes a graph of one op and takes the compiler's road.

``_C`` asks :func:`compile_call` once per signature of a call and keeps the answer; what follows runs without Python.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from .. import _C
from .._inductor.errors import Unsupported
from ..constants import DEVICE_NAME

Description = dict[str, Any]

_one_at_a_time = threading.RLock()
Results = list[torch.Tensor | None]


def compile_call(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Description | str:
    """What ``_C`` needs to run such calls, or why the card cannot.

    ``plan`` is launched with the call's card tensors ``arguments`` and then with ``outputs``, allocated for each call;
    ``copies`` are pairs (tensor of the call, output to copy into it afterwards). ``returns`` has an entry per result:
    ("argument", i), ("output", j) or None. Where there is something to ``resize``, that is all there is to do: the call
    with its outputs resized is another one. Tensors of a call are counted on the card only, with lists flattened.
    """
    # Dynamo, where it gave up on a frame and runs it, must not trace the compiler; and FX traces one graph at a time.
    before = torch._C._dynamo.eval_frame.set_eval_frame(None)
    try:
        with _one_at_a_time:
            return _compile_call(op, args, kwargs)
    finally:
        torch._C._dynamo.eval_frame.set_eval_frame(before)


def _compile_call(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Description | str:
    functional = functional_overload(op)
    if functional is None:
        return f"{op} has no functional form."
    if why := _never_native(op, functional):
        return why
    try:
        call = _Call(op, functional, (*args, *kwargs.values()))
        return call.describe() if call.tensors else "It takes no tensor."
    except Unsupported as refusal:
        return str(refusal)
    except Exception as error:
        raise RuntimeError(f"compiling {op} for the card failed: {type(error).__name__}: {error}") from error


@cache
def functional_overload(op: OpOverload) -> OpOverload | None:
    """The overload that computes the same and writes into no argument; None where there is none."""
    name, overload = _C.functional_overload(op._schema.name, op._schema.overload_name)
    namespace, packet = name.split("::")
    found = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    return None if found._schema.is_mutable else found


@cache
def _never_native(op: OpOverload, functional: OpOverload) -> str:
    """Why no call of this op can run on the card; empty where one may."""
    if torch.Tag.nondeterministic_seeded in op.tags:
        return "Random numbers are drawn on the host."
    if torch.Tag.dynamic_output_shape in op.tags or torch.Tag.data_dependent_output in op.tags:
        return "Its result's shape, or what the host does next, depends on values."
    returns, written = functional._schema.returns, _written(op)
    if any(str(result.type) != "Tensor" or result.alias_info is not None for result in returns):
        return "It returns something else than new tensors."
    if written and (
        len(written) != len(returns) or any(str(op._schema.arguments[i].type) != "Tensor" for i in written)
    ):
        return "It writes into other arguments than its results."
    return ""


def _written(op: OpOverload) -> list[int]:
    """Positions of the arguments that the op writes into, in the order of its results."""
    return [i for i, each in enumerate(op._schema.arguments) if each.alias_info and each.alias_info.is_write]


class _Call:
    """One call: its tensors on the card, and which of them are the inputs of its graph."""

    def __init__(self, op: OpOverload, functional: OpOverload, values: Sequence[Any]) -> None:
        self.op, self.functional, self.values = op, functional, values
        leaves = [leaf for value in values for leaf in (value if isinstance(value, list) else [value])]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.tensors = [tensor for tensor in tensors if tensor.device.type == DEVICE_NAME]
        # Tensors on the host have no dimensions: they are constants of the kernel.
        self.numbers = {id(tensor): tensor.item() for tensor in tensors if tensor.device.type != DEVICE_NAME}
        self.places = _C.argument_places(self.tensors)
        views = [(p, t.dtype, t.size(), t.stride()) for p, t in zip(self.places, self.tensors, strict=True)]
        self.first = [views.index(view) for view in views]  # of the tensors that are one and the same view
        self.inputs = sorted(set(self.first))
        self.written = [self._position(values[i]) for i in _written(op)]

    def describe(self) -> Description:
        with torch.no_grad():
            results = self._results()
            resize = self._resize(results)
            if resize:
                return _description(resize=resize)
            self._check_written(results)
            returns = self._returns(results)
            if not any(result is not None and result.numel() for result in results):
                fresh = [r for r in results if r is not None and not self.written]
                outputs = [_output(r.size(), r.stride(), r.dtype, None) for r in fresh]
                return _description(outputs=outputs, returns=returns)
            apart = [i for i in self.written if self._is_shared(i)]
            graph = self._trace(apart)
        plan, made = _compile(self.functional, graph, [self.tensors[i] for i in self.inputs])
        return _description(
            plan=plan,
            arguments=[i for i in self.inputs if self.tensors[i].numel()],
            outputs=[_output(**output) for output in made],
            copies=[(target, output) for output, target in enumerate(apart)],
            returns=returns,
        )

    def _results(self) -> Results:
        """The results' shapes and dtypes."""
        results = self._apply_to_shapes(self.functional)
        if self.numbers and _dtypes(results) != _dtypes(self._apply_to_shapes(self.functional, numbers=False)):
            raise Unsupported("A tensor on the host decides the result's dtype.")
        return results

    def _apply_to_shapes(self, op: OpOverload, numbers: bool = True) -> Results:
        """A call that is wrong is left to the host, whose errors users know."""
        try:
            return self._apply(op, [_empty_like(self.tensors[i], "meta") for i in self.inputs], numbers)
        except Exception as error:
            raise Unsupported(f"{type(error).__name__}: {error}") from error

    def _resize(self, results: Results) -> list[tuple[int, list[int]]]:
        sizes = [(i, result.size()) for i, result in zip(self.written, results, strict=False) if result is not None]
        return [(i, list(size)) for i, size in sizes if self.tensors[i].size() != size]

    def _check_written(self, results: Results) -> None:
        targets = [self.tensors[i] for i in self.written]
        if any(torch._debug_has_internal_overlap(target) == 1 for target in targets):
            raise Unsupported("Elements of the written tensor share memory.")
        if targets and _dtypes(targets) != _dtypes(results):
            self._apply_to_shapes(self.op)  # raises where PyTorch does not cast the result
            if self.op._schema.arguments[_written(self.op)[0]].kwarg_only:
                self._apply_to_zeros(self.op)

    def _apply_to_zeros(self, op: OpOverload) -> None:
        """Whether ``out=`` may be of another dtype is known to the host's kernels alone."""
        try:
            self._apply(op, [torch.zeros(self.tensors[i].size(), dtype=self.tensors[i].dtype) for i in self.inputs])
        except Exception as error:
            raise Unsupported(f"{type(error).__name__}: {error}") from error

    def _is_shared(self, written: int) -> bool:
        """Whether the call has another view of the memory that is written: a result then waits in its own tensor."""
        same = [i for i, (_, _, memory) in enumerate(self.places) if memory == self.places[written][2]]
        return any(self.first[i] != self.first[written] for i in same)

    def _returns(self, results: Results) -> list[tuple[str, int] | None]:
        if self.written:
            return [("argument", i) for i in self.written]
        numbers = iter(range(len(results)))
        return [None if result is None else ("output", next(numbers)) for result in results]

    def _trace(self, apart: Sequence[int]) -> torch.fx.GraphModule:
        """The graph: the op, a copy of each result into the tensor it is written to, the other results returned."""
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx

        from .._inductor.decompositions import core_decompositions

        def body(*inputs: torch.Tensor) -> Results:
            results = self._apply(self.functional, inputs)
            if not self.written:
                return [result for result in results if result is not None]
            waiting: Results = []
            for i, result in zip(self.written, results, strict=True):
                assert result is not None
                result = result.to(self.tensors[i].dtype)
                if i in apart:
                    waiting.append(result)
                else:
                    self._input(inputs, i).copy_(result)
            return waiting

        with FakeTensorMode():
            fakes = [_empty_like(self.tensors[i], self.tensors[i].device) for i in self.inputs]
            traced = make_fx(body, decomposition_table=core_decompositions())(*fakes)
        traced.graph.eliminate_dead_code()  # left by decompositions that gave up
        traced.recompile()
        return traced

    def _apply(self, op: OpOverload, inputs: Sequence[torch.Tensor], numbers: bool = True) -> Results:
        """``op`` with ``inputs`` in place of the tensors on the card, and numbers in place of those on the host."""

        def replaced(value: Any) -> Any:
            if isinstance(value, list):
                return [replaced(each) for each in value]
            if isinstance(value, torch.device) and inputs:
                return inputs[0].device
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in self.numbers:
                return self._input(inputs, self._position(value))
            return self.numbers[id(value)] if numbers else torch.empty((), dtype=value.dtype, device="cpu")

        given = dict(zip((each.name for each in self.op._schema.arguments), self.values, strict=True))
        wanted = op._schema.arguments
        args = [replaced(given[each.name]) for each in wanted if not each.kwarg_only]
        # Few overloads for tensors take numbers as well; of the other ops there is one for numbers.
        numeric = any(
            str(each.type) == "Tensor" and isinstance(a, int | float) for each, a in zip(wanted, args, strict=False)
        )
        call: Any = op.overloadpacket if numeric and not torch._C._should_allow_numbers_as_tensors(op._opname) else op
        results = call(*args, **{each.name: replaced(given[each.name]) for each in wanted if each.kwarg_only})
        return list(results) if isinstance(results, (list, tuple)) else [results]

    def _position(self, tensor: torch.Tensor) -> int:
        return next(i for i, each in enumerate(self.tensors) if each is tensor)

    def _input(self, inputs: Sequence[torch.Tensor], position: int) -> torch.Tensor:
        return inputs[self.inputs.index(self.first[position])]


def _compile(
    op: OpOverload, graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]
) -> tuple[_C.JobPlan | None, list[dict[str, Any]]]:
    from .._inductor.lower import lower_graph
    from ..execution.kernel import plan_for

    kernel = lower_graph(graph, op._schema.name.split("::")[1])
    # Tensors without elements have no memory to launch with; what is left of them is their shape.
    empty = {buffer.name for buffer in kernel.inputs() if 0 in buffer.size}
    if any(name in empty for each in kernel.ops for name in each.reads()):
        raise Unsupported("An input has no elements.")
    kernel.buffers = {name: buffer for name, buffer in kernel.buffers.items() if name not in empty}
    return plan_for(kernel, [tensor for tensor in inputs if tensor.numel()])


def _description(**fields: Any) -> Description:
    return {"plan": None, "arguments": [], "outputs": [], "copies": [], "returns": [], "resize": []} | fields


def _output(size: Any, stride: Any, dtype: torch.dtype | str, layout: Any) -> dict[str, Any]:
    """An output in terms that ``_C`` takes: compiled descriptions are JSON, which names dtypes and formats."""
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype)
    if isinstance(layout, dict):
        form = _C.DataFormats.__members__[layout["device_dtype"]]
        layout = _C.SpyreTensorLayout(layout["device_size"], layout["stride_map"], form)
    return {"size": list(size), "stride": list(stride), "dtype": dtype, "layout": layout}


def _empty_like(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)


def _dtypes(tensors: Sequence[torch.Tensor | None]) -> list[torch.dtype | None]:
    return [None if tensor is None else tensor.dtype for tensor in tensors]


def kernel_counts() -> dict[str, int]:
    """How often ops launched a kernel, how many were compiled for them in this process, and how many are kept."""
    return _C.kernel_counts()
