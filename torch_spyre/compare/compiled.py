"""Compiled kernels, op by op: each node of the graph behind a kernel as a kernel of its own.

Rounding points are fixed before planning, so the ops one by one give the bits of the fused program. Where they do not,
fusing or planning is wrong, which is a finding of its own.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from .._inductor.errors import Unsupported
from .._inductor.fx.lower import lower_graph
from .._inductor.fx.recorded_kernels import KernelGraph, recording
from .._inductor.loop_ir import from_json
from .._inductor.loop_ir.builder import HostNumbers
from ..execution.kernel import SpyreKernel, handled_by, run_kernel
from .error_bounds import same
from .judge import Judgement
from .observe import Observer
from .report import Row
from .source import Line, from_trace
from .values import held, on_card

aten = torch.ops.aten


@contextmanager
def observing_kernels(observer: Observer) -> Iterator[None]:
    """Inside, what ``torch.compile`` made is compiled anew, and its kernels are compared op by op."""
    with (
        recording() as records,
        handled_by(_Kernels(observer, records.kernels).call),
        torch.compiler.set_stance("default", force_backend=_compile_anew()),
        torch._dynamo.config.patch(recompile_limit=10**6, accumulated_recompile_limit=10**6),
    ):
        observer.eager_traces = records.eager
        yield


def _compile_anew() -> Callable[..., Any]:
    """A backend of its own for each comparison: Dynamo keeps what others have compiled, and does not use it here."""

    def backend(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx

        with _disable_current_modes():
            return compile_fx(graph, inputs, config_patches={"force_disable_caches": True})

    return backend


class _Kernels:
    def __init__(self, observer: Observer, graphs: dict[str, KernelGraph]) -> None:
        self.observer, self.graphs = observer, graphs
        self.single: dict[str, SpyreKernel] = {}  # kernels of one op, by their text
        self.views: set[tuple[str, Line]] = set()  # copies of views that were compared, and where

    def call(self, kernel: SpyreKernel, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        recorded = self.graphs.get(kernel.text)
        if recorded is None:  # compiled elsewhere, and called by a thread that the comparison does not see
            return run_kernel(kernel, inputs)
        backward = torch._C._current_autograd_node() is not None
        given = tuple(each for each in inputs if on_card(each))
        numbers = [each for each in inputs if not on_card(each)]
        with _disable_current_modes(), torch.no_grad():
            copies = self._copies(kernel, given)
            values = self._op_by_op(kernel, recorded, [*copies, *numbers], backward)
            outputs = run_kernel(kernel, inputs)
            self._expect_bits(kernel, recorded, values, (*given, *outputs), backward)
            for copy, original in zip(copies, given, strict=True):
                if copy is not original:
                    self.observer.reference.put(original, self.observer.reference.of(copy))
        return outputs

    def _copies(self, kernel: SpyreKernel, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        """The inputs for the ops one by one: what the kernel changes, and all that shares its memory, is copied."""
        described = from_json(kernel.text)
        changed = {buffer.name for buffer in described.written_inputs()}
        pairs = list(zip(described.inputs(), inputs, strict=True))
        touched = {tensor.untyped_storage()._cdata for buffer, tensor in pairs if buffer.name in changed}
        flat: dict[int, Tensor] = {}
        copies = []
        for tensor in inputs:
            key = tensor.untyped_storage()._cdata
            if key not in touched:
                copies.append(tensor)
                continue
            if key not in flat:
                whole = _whole(tensor)
                flat[key] = whole.clone()
                self.observer.reference.put(flat[key], self.observer.reference.of(whole))
            copies.append(flat[key].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()))
        return copies

    def _op_by_op(
        self, kernel: SpyreKernel, recorded: KernelGraph, inputs: list[Tensor], backward: bool
    ) -> dict[fx.Node, Any]:
        values: dict[fx.Node, Any] = {}
        for node in recorded.graph.nodes:
            if node.op == "placeholder":
                values[node] = _input(recorded, node, inputs)
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            line = from_trace(node.meta.get("stack_trace") or "", backward)
            if node.target is operator.getitem:
                values[node] = args[0][args[1]]
            elif _only_moves(node.target):
                values[node] = node.target(*args, **kwargs)
                self._expect_view(kernel, node, args, kwargs, values[node], line)
            else:
                execute = functools.partial(self._execute, node, args, kwargs, kernel.device_index)
                name = from_json(kernel.text).name
                values[node] = self.observer.observe(node.target, (args, kwargs), execute, line, name)
        return values

    def _execute(self, node: fx.Node, args: Any, kwargs: Any, device: int) -> Any:
        """One node on the card: the lowering that it has in the kernel, alone; eagerly, where it cannot be alone."""
        tensors: dict[int, Tensor] = {}
        flat, _ = torch.utils._pytree.tree_flatten((args, kwargs))
        for leaf in flat:
            if isinstance(leaf, Tensor):
                tensors.setdefault(id(leaf), leaf)
        if any(not on_card(each) or not each.numel() for each in tensors.values()):
            return node.target(*args, **kwargs)  # type: ignore[operator]
        try:
            text = lower_graph(_single(node, args, kwargs, tensors), "single").to_json()
        except Unsupported:
            return node.target(*args, **kwargs)  # type: ignore[operator]
        kernel = self.single.setdefault(text, SpyreKernel(text, device))
        outputs = run_kernel(kernel, list(tensors.values()))
        if node.target._schema.is_mutable:  # type: ignore[union-attr]
            return args[0]
        return tuple(outputs) if isinstance(node.meta["val"], (list, tuple)) else outputs[0]

    def _expect_view(self, kernel: SpyreKernel, node: fx.Node, args: Any, kwargs: Any, value: Any, line: Line) -> None:
        """A copy of the view that the kernel's lowering makes has the bits of PyTorch's own view."""
        tensors = {id(leaf): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        if not isinstance(node.target, OpOverload) or not all(on_card(x) and x.numel() for x in tensors.values()):
            return
        try:
            text = lower_graph(_single(node, args, kwargs, tensors, copied=True), "view").to_json()
        except Unsupported:
            return
        if (text, line) in self.views:
            return
        self.views.add((text, line))
        found = run_kernel(self.single.setdefault(text, SpyreKernel(text, kernel.device_index)), list(tensors.values()))
        for got, want in zip(map(held, found), map(held, tree_leaves(value)), strict=True):
            if got.shape == want.shape and same(got, want):
                continue
            differ = f"{int((got != want).sum())} of {want.numel()}" if got.shape == want.shape else "all"
            note = f"the view that its lowering makes has other elements than PyTorch's: {differ} differ"
            judgement = Judgement("beyond", math.inf, math.inf, note)
            dtype, name = str(want.dtype).removeprefix("torch."), from_json(kernel.text).name
            op = str(node.target.overloadpacket)
            self.observer.report.rows.append(Row(line, op, dtype, tuple(want.shape), name, judgement))

    def _expect_bits(
        self,
        kernel: SpyreKernel,
        recorded: KernelGraph,
        values: dict[fx.Node, Any],
        arguments: tuple[Tensor, ...],
        backward: bool,
    ) -> None:
        """Every result of the fused program has the bits of the op that made it."""
        for node, (position, view) in recorded.results.items():
            fused = _view(arguments[position], view)
            alone = values[node]
            got, want = held(fused), held(alone)
            self.observer.reference.put(fused, self.observer.reference.of(alone))
            if same(got, want):
                continue
            wrong = (got != want) & ~(got.isnan() & want.isnan()) if got.is_floating_point() else got != want
            off = (got.double() - want.double()).abs().nan_to_num(math.inf)
            note = (
                f"the fused program differs from its ops in {int(wrong.sum())} of {wrong.numel()} elements: fusing, "
                "planning or the card is wrong, not a lowering"
            )
            judgement = Judgement("beyond", float(off.amax()), math.inf, note)
            line = from_trace(node.meta.get("stack_trace") or "", backward)
            name = from_json(kernel.text).name
            dtype = str(fused.dtype).removeprefix("torch.")
            self.observer.report.rows.append(Row(line, name, dtype, tuple(fused.shape), name, judgement))


def _input(recorded: KernelGraph, node: fx.Node, inputs: list[Tensor]) -> Any:
    found = recorded.inputs.get(node)
    if isinstance(found, HostNumbers):
        return torch.cat([each for each in inputs if not on_card(each)])[found.first : found.first + found.count]
    if isinstance(found, tuple):
        return _view(inputs[found[0]], found[1])
    if found is None and isinstance(fake := node.meta.get("val"), Tensor):
        size, stride = (tuple(map(int, each)) for each in (fake.size(), fake.stride()))
        return torch.empty_strided(size, stride, dtype=fake.dtype, device=fake.device)  # nothing reads it
    return found


def _view(tensor: Tensor, view: Any) -> Tensor:
    if tensor.dtype != view.dtype:
        tensor = tensor.to(view.dtype)
    return tensor.as_strided(view.size, view.stride, tensor.storage_offset() + view.offset)


def _whole(tensor: Tensor) -> Tensor:
    """All that can be reached of the tensor's memory, as one dimension."""
    low, high = 0, tensor.untyped_storage().nbytes() // tensor.element_size()
    while low < high:  # padding belongs to no tensor, and views say no more of it than where it begins
        middle = (low + high + 1) // 2
        try:
            tensor.as_strided([middle], [1], 0)
            low = middle
        except RuntimeError:
            high = middle - 1
    return tensor.as_strided([low], [1], 0)


def _only_moves(target: Any) -> bool:
    """Whether an op only shows memory in another way."""
    return not isinstance(target, OpOverload) or (
        target is aten._unsafe_view.default or target.is_view and not target._schema.is_mutable
    )


def _single(node: fx.Node, args: Any, kwargs: Any, tensors: dict[int, Tensor], copied: bool = False) -> fx.Graph:
    """A graph of one node, on tensors like these; its results are ``copied`` where they are views."""
    graph = fx.Graph()
    inputs = {}
    for position, (key, tensor) in enumerate(tensors.items()):
        inputs[key] = graph.placeholder(f"arg{position}")
        inputs[key].meta["val"] = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    given = torch.utils._pytree.tree_map(lambda x: inputs[id(x)] if isinstance(x, Tensor) else x, (args, kwargs))
    copy = graph.call_function(node.target, *given)  # type: ignore[arg-type]
    copy.meta = dict(node.meta)
    if node.target._schema.is_mutable:  # type: ignore[union-attr]
        graph.output([])
        return graph
    value = node.meta["val"]

    def result(made: fx.Node) -> fx.Node:
        if not copied:
            return made
        clone = graph.call_function(aten.clone.default, (made,), {"memory_format": torch.contiguous_format})
        clone.meta = dict(made.meta)
        return clone

    if not isinstance(value, (list, tuple)):
        graph.output([result(copy)])
        return graph
    results = []
    for position, each in enumerate(value):
        results.append(graph.call_function(operator.getitem, (copy, position)))
        results[-1].meta["val"] = each
        results[-1] = result(results[-1])
    graph.output(results)
    return graph
