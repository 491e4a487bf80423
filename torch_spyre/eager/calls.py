"""Eager ops on the card: a call becomes a graph of one op and goes through the compiler.

``_C`` asks :func:`compile_call` once per signature of a call and keeps the answer; what follows runs without Python.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import inf
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _C
from .._inductor.errors import FrontendOnly, Unsupported
from ..compile_records import timed
from ..compile_time import compiling
from ..constants import DEVICE_NAME
from ..failures import Failure, during, tell
from ..signals import whole_imports

aten = torch.ops.aten
Description = dict[str, Any]

_one_at_a_time = threading.RLock()

# What is made from numbers is written into a tensor of the call, whose dtype and device it has.
_FACTORIES = {
    torch.ops.aten.linspace.out: torch.ops.aten.linspace.default,
    torch.ops.aten.eye.out: torch.ops.aten.eye.default,
    torch.ops.aten.eye.m_out: torch.ops.aten.eye.m,
}
Results = list[torch.Tensor | None]


class Float64(Exception):
    """The result would be float64."""


# No TypeError: Python's operators would take it for "unsupported operand types".
_NO_FLOAT64 = (
    "Spyre backend does not support dtype torch.float64: the card has no such number format, and {} of these would "
    "give it. Convert first, for example with .to(torch.float32)."
)


def compile_call(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], open: Sequence[int]
) -> Description | str:
    """What ``_C`` needs to run such calls, or why the card cannot.

    ``plan`` is launched with the call's card tensors ``arguments`` and then with ``outputs``, allocated for each call;
    ``copies`` are pairs (tensor of the call, output to copy into it afterwards). ``returns`` has an entry per result:
    ("argument", i), ("output", j) or None. Where there is something to ``resize``, that is all there is to do: the call
    with its outputs resized is another one. Tensors of a call are counted on the card only, with lists flattened.

    The arguments at the positions ``open`` are numbers for which other such calls have others. ``runtime_scalars``
    says which of them a launch takes, and how: (which, with the other sign, rounded to a dtype). It is None where the
    description holds only for the numbers of this call.
    """
    # Dynamo, where it gave up on a frame and runs it, must not trace the compiler; and FX traces one graph at a time.
    before = torch._C._dynamo.eval_frame.set_eval_frame(None)
    try:
        named = during("compile_frontend", op=str(op))
        with whole_imports(), compiling(), timed("pipeline:eager"), _one_at_a_time, named:
            found = _compile_call(op, args, kwargs, open)
            if isinstance(found, str) and _C.fallback_mode() == "error":  # then the call ends here
                tell(Failure("unimplemented", "NotImplementedError", f"{op}: {found}", facts={"op": str(op)}))
            return found
    finally:
        torch._C._dynamo.eval_frame.set_eval_frame(before)


_SHARED = (
    "unsupported operation: {} to a single memory location. Please clone() the tensor before performing the operation."
)
# Ops whose results may not lie over their inputs; those with one element each for one of the inputs may.
_MOVING = {aten.cat, aten.gather, aten.index_select, aten.take}


class _Misused(Exception):
    """What no device would do."""


def _compile_call(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], open: Sequence[int]
) -> Description | str:
    functional = functional_overload(op)
    if functional is None:
        return f"{op} has no functional form."
    if why := _never_native(op, functional):
        return why
    try:
        call = _Call(op, functional, (*args, *kwargs.values()), open)
        return call.describe() if call.tensors else "It takes no tensor."
    except Unsupported as refusal:
        return str(refusal)
    except FrontendOnly:
        raise
    except _Misused as wrong:
        raise RuntimeError(str(wrong)) from None
    except Float64:
        raise RuntimeError(_NO_FLOAT64.format(op)) from None
    except Exception as error:
        raise RuntimeError(f"compiling {op} for the card failed: {type(error).__name__}: {error}") from error


@cache
def functional_overload(op: OpOverload) -> OpOverload | None:
    """The overload that computes the same and writes into no argument; None where there is none."""
    if op in _FACTORIES:
        return _FACTORIES[op]
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


def _without_gaps(tensor: torch.Tensor) -> bool:
    return torch._debug_has_internal_overlap(tensor) == 0


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    starts = a.storage_offset(), b.storage_offset()
    return max(starts) < min(starts[0] + a.numel(), starts[1] + b.numel())


def _written(op: OpOverload) -> list[int]:
    """Positions of the arguments that the op writes into, in the order of its results."""
    return [i for i, each in enumerate(op._schema.arguments) if each.alias_info and each.alias_info.is_write]


@cache
def _lowered_whole(op: OpOverload) -> bool:
    """Whether the op has a lowering that tracing would find."""
    from .._inductor.fx.decompositions.table import core_decompositions
    from .._inductor.lowerings import LOWERINGS

    return op in LOWERINGS and op not in core_decompositions() and not op._can_decompose()


@cache
def _lowered_with_numbers(op: OpOverload) -> bool:
    """Whether its lowering is also that of an overload which takes a number."""
    from .._inductor.lowerings import LOWERINGS

    packet = op.overloadpacket
    numeric = [getattr(packet, name) for name in packet.overloads() if "Scalar" in name]
    return any(LOWERINGS.get(other) is LOWERINGS[op] for other in numeric)


def forget() -> None:
    """Lowerings and decompositions have changed: what was asked about them is asked again."""
    _lowered_whole.cache_clear()
    _lowered_with_numbers.cache_clear()


_STRUCTURED = torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional


@cache
def _has_structured_kernel(op: OpOverload) -> bool:
    """Whether PyTorch has one definition of the op's results for all devices, written in C++."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _STRUCTURED)


@cache
def _is_structured(op: OpOverload) -> bool:
    """Whether that definition gives the results as they are. (Losses make something smaller of them later.)"""
    return torch.Tag.pointwise in op.tags and _has_structured_kernel(op)


# Ops over PyTorch's iterator that are not structured, or not on every device; and structured ones of one, two and three
# tensors.
_ITERATED = {
    getattr(aten, name)
    for name in (
        *("abs", "relu", "hardswish", "isnan", "isinf", "floor_divide", "where"),
        *("logical_not", "logical_and", "logical_or", "logical_xor"),
    )
}
_LIKE = (aten.exp.default, aten.add.Tensor, aten.addcmul.default)


class _ResultsOnly(TorchDispatchMode):
    """Structured ops make their results and stop. (What computes them on meta tensors, in Python, would import Dynamo,
    and does not know the strides in every case.)"""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it is off already; skipping would import it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not func._schema.is_mutable:
            return func(*args, **kwargs)
        return next(kwargs[each.name] for each in func._schema.arguments if each.is_out)


class _Call:
    """One call: its tensors on the card, and which of them are the inputs of its graph."""

    def __init__(self, op: OpOverload, functional: OpOverload, values: Sequence[Any], open: Sequence[int]) -> None:
        self.op, self.functional, self.values, self.open = op, functional, values, open
        leaves = [leaf for value in values for leaf in (value if isinstance(value, list) else [value])]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.tensors = [tensor for tensor in tensors if tensor.device.type == DEVICE_NAME]
        # Tensors on the host have no dimensions: they are numbers, or tensors that the kernel makes.
        self.numbers = {id(tensor): tensor.item() for tensor in tensors if tensor.device.type != DEVICE_NAME}
        self.places = _C.argument_placements(self.tensors)
        views = [(p, t.dtype, t.size(), t.stride()) for p, t in zip(self.places, self.tensors, strict=True)]
        self.first = [views.index(view) for view in views]  # of the tensors that are one and the same view
        self.inputs = sorted(set(self.first))
        self.written = [self._position(values[i]) for i in _written(op)]
        numeric = _lowered_whole(functional) and _lowered_with_numbers(functional) or not self._takes_no_numbers()
        self.made_inside = bool(self.numbers) and not numeric and not self._has_wrapped()

    def describe(self) -> Description:
        with torch.no_grad():
            results = self._results()
            resize = self._resize(results)
            if resize and not self._writes_into_out():
                raise Unsupported("What it changes in place would have another size.")
            self._check_casts(results)
            if resize:
                return _description(resize=resize)
            self._check_written()
            self._check_with_host()
            returns = self._returns(results)
            if not any(result is not None and result.numel() for result in results):
                fresh = [r for r in results if r is not None and not self.written]
                outputs = [_output(r.size(), r.stride(), r.dtype, None) for r in fresh]
                return _description(outputs=outputs, returns=returns)
            apart = [i for i in self.written if self._is_shared(i)]
            plan, made, numbers = self._compile(results, apart)
        return _description(
            plan=plan,
            runtime_scalars=numbers,
            arguments=[i for i in self.inputs if self.tensors[i].numel()],
            outputs=[_output(**output) for output in made],
            copies=[(target, output) for output, target in enumerate(apart)],
            returns=returns,
        )

    def _compile(
        self, results: Results, apart: Sequence[int]
    ) -> tuple[_C.JobPlan | None, list[dict[str, Any]], list[Any] | None]:
        """The plan, its outputs, and the numbers that its launches take."""
        from .._inductor.loop_ir.runtime_scalars import ValueNeeded, given_to_launch, stand_ins

        inputs = [self.tensors[i] for i in self.inputs]
        if not self._is_lowered_whole():
            return *_compile(self.functional, self._trace(results, apart), inputs), None
        if self.open and torch.Tag.pointwise in self.functional.tags:  # nothing else than values depends on numbers
            schema = self.op._schema.arguments
            numbers = [self.numbers.get(id(self.values[i]), self.values[i]) for i in self.open]
            given, recipes = stand_ins(numbers, [schema[i].default_value for i in self.open])
            try:
                graph = self._single(results, apart, dict(zip(self.open, given, strict=True)))
                return *_compile(self.functional, graph, inputs, lambda: given_to_launch(numbers, recipes)), recipes
            except (ValueNeeded, Unsupported, TypeError):
                pass  # for these numbers alone, then
        return *_compile(self.functional, self._single(results, apart, {}), inputs), None

    def _is_lowered_whole(self) -> bool:
        op, as_tensors = self.functional, self.made_inside or not self._is_numeric()
        return _lowered_whole(op) and (as_tensors or _lowered_with_numbers(op))

    def _single(self, results: Results, apart: Sequence[int], numbers: Mapping[int, Any]) -> fx.Graph:
        """What :meth:`_trace` finds for an op that has a lowering, without tracing it."""
        graph = fx.Graph()

        def node(target: Any, args: Any, kwargs: Any, value: Any) -> fx.Node:
            made = graph.call_function(target, args, kwargs)
            made.meta["val"] = value
            return made

        inputs = []
        for i in self.inputs:
            inputs.append(graph.placeholder(f"arg{i}"))
            inputs[-1].meta["val"] = _empty_like(self.tensors[i], "meta")
        several = len(self.functional._schema.returns) > 1
        value = tuple(results) if several else results[0]
        whole = node(self.functional, *self._arguments(self.functional, inputs, numbers=numbers), value)
        made = [node(operator.getitem, (whole, i), {}, r) for i, r in enumerate(results)] if several else [whole]
        waiting = [] if self.written else [each for each in made if each.meta["val"] is not None]
        for i, result in zip(self.written, made, strict=False):
            target, dtype = self._input(inputs, i), self.tensors[i].dtype
            if result.meta["val"].dtype != dtype:
                cast = result.meta["val"].to(dtype)
                result = node(aten._to_copy.default, (result,), {"dtype": dtype}, cast)
            if i in apart:
                waiting.append(result)
            else:
                node(aten.copy_.default, (target, result), {}, target.meta["val"])
        graph.output(waiting)
        return graph

    def _results(self) -> Results:
        """The results' shapes and dtypes."""
        if _is_structured(self.functional) and not self._has_wrapped():
            results = self._structured_results()
        else:
            results = self._apply_to_shapes(self.functional, as_numbers=self._has_wrapped())
            if self.functional.overloadpacket in _ITERATED:
                results = [self._iterated(results[0])]
        if torch.float64 in _dtypes(results) and not self.written:
            raise Float64
        return results

    def _iterated(self, result: torch.Tensor | None) -> torch.Tensor:
        """The result in the strides that PyTorch's iterator gives it: whatever the dtypes, those of a structured op."""
        assert result is not None
        given = [t for t in self._where_tensors_are()[: len(_LIKE)] if isinstance(t, torch.Tensor)]
        shapes = [torch.empty_strided(t.size(), t.stride(), device="meta") for t in given if id(t) not in self.numbers]
        with _ResultsOnly():
            like = _LIKE[len(shapes) - 1]._op_dk(_STRUCTURED, *shapes)
        return torch.empty_strided(like.size(), like.stride(), dtype=result.dtype, device="meta")

    def _structured_results(self) -> Results:
        shapes = self._shapes()
        result = self._structured_result(shapes)
        if len({shape.dtype for shape in shapes}) == 1:
            return [result]
        # The CPU converts operands before it looks at their strides.
        common = functools.reduce(lambda a, b: b.new_empty(b.size(), dtype=torch.result_type(a, b)), shapes).dtype
        like = self._structured_result([shape.to(common) for shape in shapes])
        return [torch.empty_strided(result.size(), like.stride(), dtype=result.dtype, device="meta")]

    def _structured_result(self, shapes: list[torch.Tensor]) -> torch.Tensor:
        args, kwargs = self._arguments(self.functional, shapes, as_numbers=False)
        try:
            with _ResultsOnly():
                result: torch.Tensor = self.functional._op_dk(_STRUCTURED, *args, **kwargs)
                return result
        except Exception as error:
            raise Unsupported(f"{type(error).__name__}: {error}") from error

    def _shapes(self) -> list[torch.Tensor]:
        return [_empty_like(self.tensors[i], "meta") for i in self.inputs]

    def _apply_to_shapes(self, op: OpOverload, as_numbers: bool = True) -> Results:
        """A call that is wrong is left to the host, whose errors users know."""
        try:
            return self._apply(op, self._shapes(), as_numbers)
        except Exception as error:
            raise Unsupported(f"{type(error).__name__}: {error}") from error

    def _resize(self, results: Results) -> list[tuple[int, list[int], list[int]]]:
        wanted = [(i, result) for i, result in zip(self.written, results, strict=False) if result is not None]
        keeps = torch.Tag.pointwise in self.functional.tags  # the strides of its inputs
        return [
            (i, list(result.size()), list(result.stride()) if keeps else [])
            for i, result in wanted
            if self.tensors[i].size() != result.size()
        ]

    def _writes_into_out(self) -> bool:
        return bool(self.written) and self.op._schema.arguments[_written(self.op)[0]].kwarg_only

    def _check_casts(self, results: Results) -> None:
        """Raises where PyTorch does not cast a result to the dtype of the tensor that it is written into."""
        if self.written and _dtypes([self.tensors[i] for i in self.written]) != _dtypes(results):
            self._apply_to_shapes(self.op)
            if self._writes_into_out():
                self._apply_to_zeros(self.op)

    def _check_written(self) -> None:
        targets = [self.tensors[i] for i in self.written]
        into_out = self._writes_into_out()
        if any(torch._debug_has_internal_overlap(target) == 1 for target in targets):
            if into_out:
                raise _Misused(_SHARED.format("more than one element of the written-to tensor refers"))
            raise Unsupported("Elements of the written tensor share memory.")
        moves = into_out and self.functional.overloadpacket in _MOVING
        if (moves or torch.Tag.pointwise in self.functional.tags) and any(
            self._lies_over_others(written, but_equal_views=not moves) for written in self.written
        ):
            raise _Misused(_SHARED.format("some elements of the input tensor and the written-to tensor refer"))

    def _check_with_host(self) -> None:
        """Which ops are errors for integers, bools and 8 bits, for several kinds of reals, and for numbers that do not
        fit, is known to the host's kernels alone: they are asked with few elements. That they lack some for halves is
        no reason to lack them here.
        """
        fits = not any(torch.finfo(torch.float16).max < abs(number) < inf for number in self._all_numbers())
        halves = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
        replaced = halves if fits else {}
        given = {tensor.dtype for tensor in self.tensors}
        if given - {torch.float32, *replaced}:
            real = {**halves, self.tensors[0].dtype: torch.float32}
            if self._fails_on_host(replaced) and not self._fails_on_host(real):
                raise Unsupported(f"{self.tensors[0].dtype} or a number is an error to PyTorch.")
        if torch.int32 in given:  # as positions some ops take int64 only
            longer = {**replaced, torch.int32: torch.int64}
            if self._fails_on_host(replaced) and not self._fails_on_host(longer):
                raise Unsupported("torch.int32 is an error to PyTorch.")
        mixed = given & {torch.float32, *halves}
        if len(mixed) > 1 and self._fails_on_host({}) and not self._fails_on_host(halves):
            raise Unsupported(f"{' and '.join(sorted(map(str, mixed)))} together are an error to PyTorch.")

    def _all_numbers(self) -> list[int | float]:
        return [value for value in self.values if isinstance(value, int | float)]

    def _fails_on_host(self, dtypes: Mapping[torch.dtype, torch.dtype]) -> bool:
        """Whether the host has an error for such a call, on tensors of few elements, all of them 1 or all of them 0."""
        few = sum(tensor.numel() for tensor in self.tensors) <= 4096

        def fails(number: int) -> bool:
            given = [self.tensors[i] for i in self.inputs]
            sizes = [tensor.size() if few else [min(n, 2) for n in tensor.size()] for tensor in given]
            pairs = zip(sizes, given, strict=True)
            try:
                self._apply(
                    self.functional,
                    [torch.full(size, number).to(dtypes.get(tensor.dtype, tensor.dtype)) for size, tensor in pairs],
                )
            except Exception as error:
                return "ZeroDivisionError" not in str(error)  # the card finds those itself, whatever the number
            return False

        return fails(1) and fails(0)

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

    def _lies_over_others(self, written: int, but_equal_views: bool) -> bool:
        """Whether another view of the call shows some of what is written; views with gaps are not looked into."""
        target = self.tensors[written]
        others = [
            tensor
            for i, (tensor, (_, _, memory), first) in enumerate(zip(self.tensors, self.places, self.first, strict=True))
            if memory == self.places[written][2]
            if (first != self.first[written] if but_equal_views else i != written)
        ]
        return any(_without_gaps(each) and _without_gaps(target) and _meet(each, target) for each in others)

    def _returns(self, results: Results) -> list[tuple[str, int] | None]:
        if self.written:
            return [("argument", i) for i in self.written]
        numbers = iter(range(len(results)))
        return [None if result is None else ("output", next(numbers)) for result in results]

    def _trace(self, results: Results, apart: Sequence[int]) -> fx.Graph:
        """The graph: the op, a copy of each result into the tensor it is written to, the other results returned."""
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx

        from .._inductor.fx.decompositions.table import core_decompositions

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
        if _has_structured_kernel(self.functional) and not self.written:
            outputs: Any = traced.graph.output_node().args[0]
            made = [result for result in results if result is not None]
            for node, result in zip(outputs, made, strict=True):
                if node.op == "call_function":  # decompositions do not know the strides in every case
                    node.meta["val"] = result
        return traced.graph

    def _apply(self, op: OpOverload, inputs: Sequence[torch.Tensor], as_numbers: bool = True) -> Results:
        """``op`` with ``inputs`` in place of the tensors on the card, and numbers in place of those on the host."""
        args, kwargs = self._arguments(op, inputs, as_numbers)
        call: Any = op.overloadpacket if as_numbers and self._is_numeric() and not self.made_inside else op
        results = call(*args, **kwargs)
        return list(results) if isinstance(results, (list, tuple)) else [results]

    def _is_numeric(self) -> bool:
        """Whether numbers in place of tensors take another overload."""
        return self._takes_no_numbers() and any(
            isinstance(value, int | float) or id(value) in self.numbers for value in self._where_tensors_are()
        )

    def _has_wrapped(self) -> bool:
        """Whether there are numbers in place of tensors that the overload does not take."""
        return self._takes_no_numbers() and any(isinstance(value, int | float) for value in self._where_tensors_are())

    def _takes_no_numbers(self) -> bool:
        """Few of the overloads for tensors take numbers as well."""
        return not torch._C._should_allow_numbers_as_tensors(self.functional._opname)

    def _where_tensors_are(self) -> list[Any]:
        """The arguments that are tensors by the op's schema, without outputs."""
        schema = self.op._schema.arguments
        return [
            v for each, v in zip(schema, self.values, strict=True) if str(each.type) == "Tensor" and not each.is_out
        ]

    def _arguments(
        self, op: OpOverload, inputs: Sequence[Any], as_numbers: bool = True, numbers: Mapping[int, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``numbers``: what takes the place of numbers of the call, by their position in it."""

        def replaced(value: Any) -> Any:
            if isinstance(value, list):
                return [replaced(each) for each in value]
            if isinstance(value, torch.device) and inputs and isinstance(inputs[0], torch.Tensor):
                return inputs[0].device
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in self.numbers:
                return self._input(inputs, self._position(value))
            if self.made_inside:
                return _made_like(inputs[0], self.numbers[id(value)], value.dtype)
            return self.numbers[id(value)] if as_numbers else torch.empty((), dtype=value.dtype, device="meta")

        given = {each.name: replaced(v) for each, v in zip(self.op._schema.arguments, self.values, strict=True)}
        if self.op in _FACTORIES:
            given |= {"dtype": given["out"].dtype, "device": inputs[0].device, "layout": None, "pin_memory": None}
        for position, number in (numbers or {}).items():
            value = self.values[position]
            if self.made_inside and isinstance(value, torch.Tensor):
                number = _made_like(inputs[0], number, value.dtype)
            given[self.op._schema.arguments[position].name] = number
        wanted = op._schema.arguments
        return (
            tuple(given[each.name] for each in wanted if not each.kwarg_only),
            {each.name: given[each.name] for each in wanted if each.kwarg_only},
        )

    def _position(self, tensor: torch.Tensor) -> int:
        return next(i for i, each in enumerate(self.tensors) if each is tensor)

    def _input(self, inputs: Sequence[Any], position: int) -> Any:
        return inputs[self.inputs.index(self.first[position])]


def _made_like(one: Any, number: Any, dtype: torch.dtype) -> Any:
    """A number as a tensor without dimensions where ``one`` is: in its graph, or on its device."""
    if dtype == torch.float64 and (isinstance(one, fx.Node) or one.device.type != "meta"):
        dtype = torch.float32  # which it becomes next to others
    if not isinstance(one, fx.Node):
        return torch.scalar_tensor(number, dtype=dtype, device=one.device)
    made = one.graph.call_function(aten.scalar_tensor.default, (number,), {"dtype": dtype})
    made.meta["val"] = torch.empty((), dtype=dtype, device="meta")
    return made


def _compile(
    op: OpOverload, graph: fx.Graph, inputs: Sequence[torch.Tensor], numbers: Callable[[], Sequence[float]] = tuple
) -> tuple[_C.JobPlan | None, list[dict[str, Any]]]:
    from .._inductor.fx.lower import lower_graph
    from ..execution.kernel import plan_for

    with timed("stage:lower"):
        kernel = lower_graph(graph, op._schema.name.split("::")[1])
    for each in kernel.ops:
        each.aten = str(op)  # which the program called, whatever it was traced into
    # Tensors without elements have no memory to launch with; what is left of them is their shape.
    empty = {buffer.name for buffer in kernel.inputs() if 0 in buffer.size}
    if any(name in empty for each in kernel.ops for name in each.reads()):
        raise Unsupported("An input has no elements.")
    kernel.buffers = {name: buffer for name, buffer in kernel.buffers.items() if name not in empty}
    return plan_for(kernel, [tensor for tensor in inputs if tensor.numel()], numbers)


def _description(**fields: Any) -> Description:
    empty: Description = {"plan": None, "arguments": [], "outputs": [], "copies": [], "returns": [], "resize": []}
    return empty | {"runtime_scalars": None} | fields


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
