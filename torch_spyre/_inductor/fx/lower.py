"""Lowering: the nodes of an FX graph become loop ops, one node after the other."""

from __future__ import annotations

import operator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ... import _C
from ..errors import Unsupported
from ..loop_ir import Buffer, Kernel
from ..loop_ir.builder import Builder, Value
from ..lowerings import LOWERINGS
from ..passes.dead_code import dead_code


def lower_graph(graph: fx.Graph, name: str) -> Kernel:
    """The whole graph as one kernel, with its placeholders as inputs and its results as outputs; raises Unsupported."""
    builder = Builder()
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            if is_host_numbers(node):
                values[node] = builder.host_numbers(node.meta["val"].size(0))
            elif isinstance(node.meta.get("val"), torch.Tensor):
                values[node] = input_of(builder, node)
        elif node.op == "call_function":
            values[node] = lower_node(builder, node, values)
        elif node.op == "output":
            results = [as_promised(builder, values[a], a) if isinstance(a, fx.Node) else a for a in node.args[0]]
    outputs: dict[str, Buffer] = {}
    for result in results:
        value = _whole_buffer(builder, result)
        while value.buffer in outputs:
            value = builder.copy(result)
        buffer = builder.buffer(value)
        order = buffer.order if buffer.size == value.size else None
        outputs[value.buffer] = replace(buffer, size=value.size, stride=value.stride, kind="output", order=order)
    kernel = builder.kernel
    kernel.name = name
    inputs = {name: buffer for name, buffer in kernel.buffers.items() if buffer.kind == "input"}
    kernel.buffers = {
        **inputs,
        **outputs,
        **{n: b for n, b in kernel.buffers.items() if n not in {**inputs, **outputs}},
    }
    dead_code(kernel)
    return kernel


def _whole_buffer(builder: Builder, value: Value) -> Value:
    """The value if it covers an internal buffer of its dtype, otherwise a copy that does."""
    buffer = builder.buffer(value)
    whole = value.numel == Value("", value.dtype, buffer.size, ()).numel and not value.offset
    if buffer.kind == "internal" and whole and buffer.dtype == value.dtype and 0 not in value.stride:
        return value
    return builder.copy(value)


def as_promised(builder: Builder, value: Value, node: fx.Node) -> Value:
    """A result with the strides of the traced tensor, which other code relies on, broadcast dimensions included."""
    stride = tuple(integers(node.meta["val"].stride()))
    if builder.buffer(value).dtype != value.dtype:  # a cast that was free inside the kernel
        value = builder.copy(value, stride=stride)
    if all(n == 1 or a == b for n, a, b in zip(value.size, value.stride, stride, strict=True)):
        return value
    own = [i for i, (n, s) in enumerate(zip(value.size, stride, strict=True)) if n == 1 or s != 0]
    parts = [tuple(given[i] for i in own) for given in (value.size, value.stride, stride)]
    if len(own) < len(stride):
        if any(value.stride[i] for i in range(len(stride)) if i not in own) or _overlap(parts[0], parts[2]):
            return value
        copy = _copy_with_strides(builder, replace(value, size=parts[0], stride=parts[1]), parts[2])
        return replace(copy, size=value.size, stride=stride)
    return _copy_with_strides(builder, value, stride)


def _overlap(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether elements overlap: some stride is smaller than the extent of the dimensions inside it."""
    reach = 1
    for n, step in sorted(zip(size, stride, strict=True), key=lambda pair: pair[1]):
        if n > 1 and step < reach:
            return True
        reach += (n - 1) * step
    return False


def _copy_with_strides(builder: Builder, value: Value, stride: tuple[int, ...]) -> Value:
    out = builder.empty(value.size, value.dtype, stride)
    if out.stride != stride:  # they leave gaps: a strided view of a larger buffer
        reach = 1 + sum((n - 1) * s for n, s in zip(value.size, stride, strict=True))
        out = replace(builder.empty([reach], value.dtype), size=value.size, stride=stride)
    return builder.copy(value, out)


def input_of(builder: Builder, node: fx.Node) -> Value:
    """A placeholder, or a node outside of the kernel, as an input of the kernel."""
    fake = node.meta["val"]
    size, stride = tuple(integers(fake.shape)), tuple(integers(fake.stride()))
    _check_dtype(fake)
    builder.kernel.buffers[node.name] = Buffer(
        node.name, fake.dtype, size, stride, "input", names=node.meta.get("spyre_names", ())
    )
    builder.offsets[node.name] = integers([fake.storage_offset()])[0]
    return Value(node.name, fake.dtype, size, stride)


def is_host_numbers(node: fx.Node) -> bool:
    """Whether a node is a row of integers on the host, which ops take as numbers of the launch."""
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor) or fake.device.type != "cpu" or fake.dim() != 1:
        return False
    return fake.dtype in (torch.int32, torch.int64) and any(node in numbers_of(user) for user in node.users)


def numbers_of(node: fx.Node) -> list[fx.Node]:
    """The arguments of a node that are numbers of the launch."""
    if node.target is not torch.ops.spyre.paged_attention.default:
        return []
    given = dict(zip(("query_starts", "lengths"), node.args[4:6], strict=False)) | dict(node.kwargs)
    return [each for name in ("query_starts", "lengths") if isinstance(each := given.get(name), fx.Node)]


def _check_dtype(fake: torch.Tensor) -> None:
    try:
        known = _C.get_device_dtype(fake.dtype) != _C.DataFormats.INVALID
    except (RuntimeError, TypeError, ValueError):
        known = False
    if not known:
        raise Unsupported(f"the card has no format for {fake.dtype}")


def integers(sizes: Any) -> list[int]:
    """Sizes as numbers."""
    return [_integer(n) for n in sizes]


def _integer(n: int | torch.SymInt) -> int:
    """A size as a number; a symbolic one is fixed to its value in this call, with a guard."""
    if isinstance(n, torch.SymInt):
        from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols  # slow, and eager ops have none

        if has_free_unbacked_symbols(n):
            raise Unsupported("a size depends on the values of a tensor")
    return int(n)


def lower_node(builder: Builder, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """Adds the loop ops of one node. Raises Unsupported, with the op and its shapes, if the card cannot run it."""
    if node.target is operator.getitem:
        return values[node.args[0]][node.args[1]]  # type: ignore[index]
    lowering = LOWERINGS.get(node.target)  # type: ignore[call-overload]
    if lowering is None:
        raise Unsupported(f"{node.target} has no lowering for the card")
    builder.op, builder.meta = node.target, _numbers(node.meta.get("val"))
    builder.root = _root(builder, node, values)
    builder.source, builder.aten, builder.nodes = source_of(node), aten_of(node), nodes_of(node)
    builder.hints = dict(node.meta.get("custom", {}).get("spyre_hint", {}) or {})
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: values[n])
    for fake in tensors_of(node.meta.get("val")):
        _check_dtype(fake)
    before, buffers = len(builder.kernel.ops), set(builder.kernel.buffers)
    try:
        return lowering(builder, *_plain(args), **_plain(kwargs))
    except Unsupported as refusal:
        del builder.kernel.ops[before:]
        for name in set(builder.kernel.buffers) - buffers:
            del builder.kernel.buffers[name]
        shapes = ", ".join(f"{_short(v)}" for v in _flat(args))
        raise Unsupported(
            f"{node.target} of {shapes}: {refusal}" + (f" ({builder.source})" if builder.source else "")
        ) from None


def _root(builder: Builder, node: fx.Node, values: dict[fx.Node, Any]) -> Value | None:
    """For ``as_strided``: the tensor whose memory its offset counts in, with the strides that it had in tracing."""
    if node.target is not torch.ops.aten.as_strided.default:
        return None
    source: Any = node.args[0]
    while source.op == "call_function" and getattr(source.target, "is_view", False):
        source = source.args[0]
    if source.op != "call_function" or not isinstance(values.get(source), Value):
        return None
    value = as_promised(builder, values[source], source)
    buffer = builder.buffer(value)
    own = buffer.kind == "internal" and not value.offset and (value.size, value.stride) == (buffer.size, buffer.stride)
    return value if own else builder.copy(value, stride=value.stride)


class _Numbers:
    """Size, strides and dtype of a fake tensor, as plain numbers: ``builder.meta`` of lowerings."""

    def __init__(self, fake: torch.Tensor) -> None:
        self.shape = tuple(integers(fake.shape))
        self.dtype = fake.dtype
        self._stride = tuple(integers(fake.stride()))

    def stride(self) -> tuple[int, ...]:
        return self._stride


def _numbers(meta: Any) -> Any:
    if isinstance(meta, torch.Tensor):
        return _Numbers(meta)
    if isinstance(meta, list | tuple):
        return tuple(_numbers(m) for m in meta)
    return meta


def _plain(args: Any) -> Any:
    """Arguments without symbols. Integers become their values in this call; other symbols have no guard: refused."""

    def plain(arg: Any) -> Any:
        if isinstance(arg, torch.SymFloat | torch.SymBool):
            raise Unsupported("an argument is a float or bool that changes between calls")
        return _integer(arg) if isinstance(arg, torch.SymInt) else arg

    return fx.node.map_aggregate(args, plain)


def _flat(args: Any) -> list[Value]:
    found: list[Value] = []
    fx.node.map_aggregate(args, lambda a: found.append(a) if isinstance(a, Value) else None)
    return found


def _short(value: Value) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.size)}"


def tensors_of(meta: Any) -> list[torch.Tensor]:
    """The fake tensors in the result of a node."""
    if isinstance(meta, torch.Tensor):
        return [meta]
    return [t for m in meta for t in tensors_of(m)] if isinstance(meta, list | tuple) else []


def source_of(node: fx.Node) -> str:
    """The line of the user's program that a node comes from: the innermost frame outside of PyTorch."""
    trace = node.meta.get("stack_trace") or ""
    frames = [line.strip() for line in trace.split("\n") if line.strip().startswith("File ")]
    theirs = [frame for frame in frames if not frame.startswith(_IN_PYTORCH)]
    return next(reversed(theirs or frames), "")


def aten_of(node: fx.Node) -> str:
    """The op that the program called, before it was decomposed."""
    return str(node.meta.get("original_aten") or node.target)


def nodes_of(node: fx.Node) -> tuple[str, ...]:
    """Names of a node in its graph and, where AOT has kept it, of what it was in Dynamo's."""
    origins = node.meta.get("from_node") or ()
    while origins and origins[0].from_node:
        origins = origins[0].from_node
    return (node.name, *([origins[0].name] if origins else []))


_IN_PYTORCH = f'File "{Path(torch.__file__).parent}/'
