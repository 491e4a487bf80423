"""The FX graph of a call: its functional op, and a copy of each result into the tensor that the call writes.

Results for the tensors at the positions ``separate`` are returned by the graph instead, in tensors of their own.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from .call import Call, Results, empty_like
from .results import has_structured_kernel

aten = torch.ops.aten


def single_op_graph(call: Call, results: Results, separate: Sequence[int], scalars: Mapping[int, Any]) -> fx.Graph:
    """The graph of an op that has a lowering: one node, without tracing. ``scalars``: see :meth:`Call.arguments`."""
    graph = fx.Graph()

    def node(target: Any, args: Any, kwargs: Any, value: Any) -> fx.Node:
        made = graph.call_function(target, args, kwargs)
        made.meta["val"] = value
        return made

    inputs = []
    for i in call.inputs:
        inputs.append(graph.placeholder(f"arg{i}"))
        inputs[-1].meta["val"] = empty_like(call.tensors[i], "meta")
    several = len(call.functional._schema.returns) > 1
    value = tuple(results) if several else results[0]
    op = node(call.functional, *call.arguments(call.functional, inputs, scalars=scalars), value)
    made = [node(operator.getitem, (op, i), {}, r) for i, r in enumerate(results)] if several else [op]
    returned = [] if call.written else [each for each in made if each.meta["val"] is not None]
    for i, result in zip(call.written, made, strict=False):
        target, dtype = call.input(inputs, i), call.tensors[i].dtype
        if result.meta["val"].dtype != dtype:
            cast = result.meta["val"].to(dtype)
            result = node(aten._to_copy.default, (result,), {"dtype": dtype}, cast)
        if i in separate:
            returned.append(result)
        else:
            node(aten.copy_.default, (target, result), {}, target.meta["val"])
    graph.output(returned)
    return graph


def traced_graph(call: Call, results: Results, separate: Sequence[int]) -> fx.Graph:
    """The graph of any other op: traced, with decompositions."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from .._inductor.fx.decompositions.table import core_decompositions

    def body(*inputs: torch.Tensor) -> Results:
        results = call.apply(call.functional, inputs)
        if not call.written:
            return [result for result in results if result is not None]
        returned: Results = []
        for i, result in zip(call.written, results, strict=True):
            assert result is not None
            result = result.to(call.tensors[i].dtype)
            if i in separate:
                returned.append(result)
            else:
                call.input(inputs, i).copy_(result)
        return returned

    with FakeTensorMode():
        fakes = [empty_like(call.tensors[i], call.tensors[i].device) for i in call.inputs]
        traced = make_fx(body, decomposition_table=core_decompositions())(*fakes)
    traced.graph.eliminate_dead_code()  # of decompositions that returned NotImplemented after some ops
    if has_structured_kernel(call.functional) and not call.written:
        outputs: Any = traced.graph.output_node().args[0]
        made = [result for result in results if result is not None]
        for node, result in zip(outputs, made, strict=True):
            if node.op == "call_function":  # a decomposition gets the strides wrong in some cases
                node.meta["val"] = result
    return traced.graph
