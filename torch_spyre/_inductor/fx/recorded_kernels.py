"""The graphs behind kernels, for tools that run a kernel's ops one by one.

Kernels hold loop ops, which follow from lowerings; what a lowering should have computed is in the FX graph alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import fx
from torch._ops import OpOverload

from ..loop_ir.builder import HostNumbers, Value


@dataclass(frozen=True)
class KernelGraph:
    """The part of a graph that became one kernel.

    ``inputs`` says of each placeholder which input of the kernel it is a view of, or what numbers it is; ``results`` of
    each node that is used outside, what view of an argument of the kernel holds it. Arguments are inputs, then outputs.
    """

    graph: fx.Graph
    inputs: dict[fx.Node, tuple[int, Value] | HostNumbers | int | float]
    results: dict[fx.Node, tuple[int, Value]]


@dataclass(frozen=True)
class Records:
    """What was compiled: the graph behind each kernel, by its text, and the traces of ops that run eagerly, by name."""

    kernels: dict[str, KernelGraph] = field(default_factory=dict)
    eager: dict[str, list[str]] = field(default_factory=dict)


recorders: list[Records] = []


@contextmanager
def recording() -> Iterator[Records]:
    """Gives what is compiled inside."""
    records = Records()
    recorders.append(records)
    try:
        yield records
    finally:
        recorders.remove(records)


def record_eager(node: fx.Node, owner: fx.GraphModule) -> None:
    """Notes the op of a node that runs eagerly, or those of the graph that it calls."""
    trace = node.meta.get("stack_trace") or ""
    if isinstance(node.target, OpOverload):
        for records in recorders:
            records.eager.setdefault(node.target._schema.name, []).append(trace)
        return
    for given in node.all_input_nodes:
        inner = getattr(owner, str(given.target), None) if given.op == "get_attr" else None
        if isinstance(inner, fx.GraphModule):
            for each in inner.graph.nodes:
                if each.op == "call_function":
                    each.meta.setdefault("stack_trace", trace)
                    record_eager(each, inner)


def kernel_graph(
    nodes: Sequence[fx.Node], values: dict[fx.Node, object], wanted: Sequence[fx.Node], arguments: Sequence[str]
) -> KernelGraph:
    """``values`` are what nodes are inside the kernel, ``arguments`` the names of its arguments in order."""
    graph, copies = fx.Graph(), {}
    inputs: dict[fx.Node, tuple[int, Value] | HostNumbers | int | float] = {}
    inside = set(nodes)
    for given in dict.fromkeys(given for node in nodes for given in node.all_input_nodes if given not in inside):
        copies[given] = graph.placeholder(given.name)
        copies[given].meta = dict(given.meta)
        value = values[given]
        if not isinstance(value, Value):
            inputs[copies[given]] = value  # type: ignore[assignment]
        elif value.buffer in arguments:
            inputs[copies[given]] = (arguments.index(value.buffer), value)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    found = {copies[node]: values[node] for node in wanted}
    results = {
        node: (arguments.index(value.buffer), value)
        for node, value in found.items()
        if isinstance(value, Value) and value.numel and value.buffer in arguments
    }
    return KernelGraph(graph, inputs, results)
