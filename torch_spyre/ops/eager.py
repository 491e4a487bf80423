"""Eager ops on the card: a call becomes a graph of one op and takes the compiler's road.

``_C`` asks :func:`compile_call` once per signature of a call and keeps the answer; what follows runs without Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from .. import _C
from .._inductor.errors import Unsupported
from ..constants import DEVICE_NAME

Description = dict[str, Any]


def compile_call(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Description | str:
    """What ``_C`` needs to run such calls, or why the card cannot.

    ``plan`` is launched with the call's card tensors ``arguments`` and then with ``outputs``, allocated for each call;
    ``copies`` are pairs (tensor of the call, output to copy into it afterwards). ``returns`` has an entry per result:
    ("argument", i), ("output", j) or None. Where there is something to ``resize``, that is all there is to do: the call
    with its outputs resized is another one. Tensors of a call are counted on the card only, with lists flattened.
    """
    functional = functional_overload(op)
    if why := _never_native(op, functional):
        return why
    assert functional is not None
    try:
        call = _Call(op, functional, (*args, *kwargs.values()))
        return call.describe()
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
def _never_native(op: OpOverload, functional: OpOverload | None) -> str:
    """Why no call of this op can run on the card; empty where one may."""
    if functional is None:
        return f"{op} has no functional form."
    if torch.Tag.nondeterministic_seeded in op.tags:
        return "Random numbers are drawn on the host."
    if torch.Tag.dynamic_output_shape in op.tags or torch.Tag.data_dependent_output in op.tags:
        return "The result's shape depends on values."
    returns, written = functional._schema.returns, _written(op)
    if any(str(each.type) != "Tensor" or each.alias_info is not None for each in returns):
        return "It returns something else than new tensors."
    if written and (len(written) != len(returns) or any(str(op._schema.arguments[i].type) != "Tensor" for i in written)):
        return "It writes into lists of tensors."
    return ""


def _written(op: OpOverload) -> list[int]:
    """Positions of the arguments that the op writes into, in the order of its results."""
    return [i for i, each in enumerate(op._schema.arguments) if each.alias_info and each.alias_info.is_write]


@dataclass
class _Call:
    """One call: its functional form, and where its tensors go among the inputs of a graph."""

    op: OpOverload
    functional: OpOverload
    values: tuple[Any, ...]
    tensors: list[torch.Tensor] = field(default_factory=list)  # on the card, lists flattened
    inputs: list[int] = field(default_factory=list)  # of the graph: the first of several tensors that are one view
    places: list[tuple[_C.SpyreTensorLayout, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for value in self.values:
            each = value if isinstance(value, (list, tuple)) else [value]
            self.tensors += [t for t in each if isinstance(t, torch.Tensor) and t.device.type == DEVICE_NAME]
        self.places = _C.argument_places(self.tensors)
        self.inputs = [i for i in range(len(self.tensors)) if self.first(i) == i]

    def first(self, index: int) -> int:
        """The first tensor of the call that is the same view of the same memory."""
        return next(i for i in range(index + 1) if self.view(i) == self.view(index))

    def view(self, index: int) -> tuple[Any, ...]:
        tensor = self.tensors[index]
        return self.places[index], tensor.dtype, tensor.size(), tensor.stride()

    def index(self, tensor: torch.Tensor) -> int:
        return next(i for i, each in enumerate(self.tensors) if each is tensor)

    def describe(self) -> Description:
        from torch._subclasses.fake_tensor import FakeTensorMode

        written = [self.index(self.values[i]) for i in _written(self.op)]
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fakes = [_empty_like(self.tensors[i]) for i in self.inputs]
            results = self.results(fakes)
            resize = [
                (i, list(result.size()))
                for i, result in zip(written, results, strict=bool(written))
                if result is not None and result.size() != self.tensors[i].size()
            ]
            if resize:
                return _description(resize=resize)
            for i, result in zip(written, results, strict=bool(written)):
                self.check_written(i, result)
            if not any(result is not None and result.numel() for result in results):
                return self.nothing_to_compute(results, written)
            # Where another view of its memory is read, a result is complete before it is written.
            apart = [i for i in written if self.shares(i)]
            graph = self.trace(fakes, written, apart)
        del mode
        return self.compiled(graph, results, written, apart)

    def check_written(self, index: int, result: torch.Tensor | None) -> None:
        target = self.tensors[index]
        if result is None:
            raise Unsupported(f"{self.op} gives nothing to write.")
        if torch._debug_has_internal_overlap(target) != 0:
            raise Unsupported("Elements of the written tensor share memory.")
        if not torch.can_cast(result.dtype, target.dtype):
            raise Unsupported(f"The result is {result.dtype}, the tensor to write {target.dtype}.")

    def shares(self, index: int) -> bool:
        """Whether another view of the call lies in the same memory."""
        return any(
            self.places[i][2] == self.places[index][2] and self.first(i) != self.first(index)
            for i in range(len(self.tensors))
        )

    def results(self, fakes: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The results' shapes and dtypes; a call that is wrong is left to the host, whose errors users know."""
        try:
            results = _flat(self.functional(*self.arguments(fakes, numbers=False)[0], **self.arguments(fakes)[1]))
            with_numbers = _flat(self.apply(fakes))
        except Exception as error:
            raise Unsupported(f"{type(error).__name__}: {error}") from error
        for tensor, number in zip(results, with_numbers, strict=True):
            if tensor is not None and number is not None and tensor.dtype != number.dtype:
                raise Unsupported("A tensor on the host decides the result's dtype.")
        return results

    def apply(self, inputs: Sequence[torch.Tensor]) -> Any:
        args, kwargs = self.arguments(inputs)
        return self.functional(*args, **kwargs)

    def arguments(self, inputs: Sequence[torch.Tensor], numbers: bool = True) -> tuple[list[Any], dict[str, Any]]:
        """The functional op's arguments with ``inputs`` in place of tensors; those on the host become numbers."""

        def replaced(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [replaced(each) for each in value]
            if not isinstance(value, torch.Tensor):
                return value
            if value.device.type == DEVICE_NAME:
                return inputs[self.inputs.index(self.first(self.index(value)))]
            return value.item() if numbers else value

        given = dict(zip((each.name for each in self.op._schema.arguments), self.values, strict=True))
        args, kwargs = [], {}
        for each in self.functional._schema.arguments:
            value = replaced(given[each.name])
            if each.kwarg_only:
                kwargs[each.name] = value
            else:
                args.append(value)
        return args, kwargs

    def trace(
        self, fakes: Sequence[torch.Tensor], written: Sequence[int], apart: Sequence[int]
    ) -> torch.fx.GraphModule:
        """The graph: the op, a copy of each result into the tensor it is written to, the other results returned."""
        from torch.fx.experimental.proxy_tensor import make_fx

        from .._inductor.decompositions import decompositions

        def body(*inputs: torch.Tensor) -> list[torch.Tensor]:
            results = _flat(self.apply(inputs))
            for index, result in zip(written, results, strict=bool(written)):
                assert result is not None
                result = result.to(self.tensors[index].dtype)
                if index not in apart:
                    inputs[self.inputs.index(self.first(index))].copy_(result)
            if not written:
                return [result for result in results if result is not None]
            return [
                result.to(self.tensors[index].dtype)
                for index, result in zip(written, results, strict=True)
                if index in apart and result is not None
            ]

        return make_fx(body, decomposition_table=decompositions())(*fakes)

    def nothing_to_compute(self, results: Sequence[torch.Tensor | None], written: Sequence[int]) -> Description:
        outputs = [_output(r.size(), r.stride(), r.dtype, None) for r in results if r is not None and not written]
        return _description(outputs=outputs, returns=self.returns(results, written))

    def returns(self, results: Sequence[torch.Tensor | None], written: Sequence[int]) -> list[tuple[str, int] | None]:
        if written:
            return [("argument", i) for i in written][: len(self.op._schema.returns)]
        numbers = iter(range(len(results)))
        return [None if result is None else ("output", next(numbers)) for result in results]

    def compiled(
        self,
        graph: torch.fx.GraphModule,
        results: Sequence[torch.Tensor | None],
        written: Sequence[int],
        apart: Sequence[int],
    ) -> Description:
        from .._inductor.partition import lower_graph
        from ..execution.kernel import plan_for

        inputs = [self.tensors[i] for i in self.inputs]
        if not all(tensor.numel() for tensor in inputs):
            raise Unsupported("An input has no elements.")
        plan, outputs = plan_for(lower_graph(graph, self.functional._schema.name.split("::")[1]), inputs)
        return _description(
            plan=plan,
            arguments=self.inputs,
            outputs=[_output(**output) for output in outputs],
            copies=[(i, output) for output, i in enumerate(apart)],
            returns=self.returns(results, written),
        )


def _description(**fields: Any) -> Description:
    return {"plan": None, "arguments": [], "outputs": [], "copies": [], "returns": [], "resize": []} | fields


def _output(size: Any, stride: Any, dtype: torch.dtype | str, layout: Any) -> dict[str, Any]:
    """An output in terms that ``_C`` takes; compiled descriptions are JSON and name dtypes and formats."""
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype)
    if isinstance(layout, dict):
        form = _C.DataFormats[layout["device_dtype"]]
        layout = _C.SpyreTensorLayout(layout["device_size"], layout["stride_map"], form)
    return {"size": list(size), "stride": list(stride), "dtype": dtype, "layout": layout}


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _flat(results: Any) -> list[torch.Tensor | None]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


def kernel_counts() -> dict[str, int]:
    """How often ops launched a kernel, how many were compiled for them in this process, and how many are kept."""
    return _C.kernel_counts()
