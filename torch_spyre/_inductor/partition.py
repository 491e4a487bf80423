"""An FX graph split into kernels.

Before: a functional ATen graph, as AOT and Inductor's passes leave it. After: every maximal run of ops that the card
does itself is one call of a :class:`KernelCall`; ops it cannot do are calls of a :class:`FallbackCall`; ops of other
devices stay as they are. Views exist inside kernels only; what others need of them are ``as_strided`` nodes.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

from ..constants import DEVICE_NAME
from .builder import Builder, Value
from .errors import Unsupported
from .kernel_call import call_kernel, fall_back
from .logging import get_logger
from .loop_ir import Buffer, Kernel
from .lowerings import LOWERINGS
from .passes.dead_code import dead_code

aten = torch.ops.aten
log = get_logger(__name__)


def partition(gm: fx.GraphModule) -> None:
    """Rewrites ``gm`` in place."""
    _Partition(gm).run()


def lower_graph(gm: fx.GraphModule, name: str) -> Kernel:
    """The whole graph as one kernel: inputs are the placeholders, outputs what it returns, in order. Or Unsupported."""
    builder = Builder()
    values: dict[fx.Node, Any] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            if isinstance(node.meta.get("val"), torch.Tensor):
                values[node] = _input(builder, node)
        elif node.op == "call_function":
            values[node] = _lower(builder, node, values)
        elif node.op == "output":
            results = [_as_promised(builder, values[a], a) if isinstance(a, fx.Node) else a for a in node.args[0]]
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
    """A value that is all of an internal buffer of its own dtype; a copy where it is not."""
    buffer = builder.buffer(value)
    whole = value.numel == Value("", value.dtype, buffer.size, ()).numel and not value.offset
    if buffer.kind == "internal" and whole and buffer.dtype == value.dtype and 0 not in value.stride:
        return value
    return builder.copy(value)


def _as_promised(builder: Builder, value: Value, node: fx.Node) -> Value:
    """A result in the strides that tracing found, where those leave no gaps: whoever comes next counts on them."""
    stride = tuple(_integers(node.meta["val"].stride()))
    if all(n == 1 or a == b for n, a, b in zip(value.size, value.stride, stride, strict=True)):
        return value
    if any(n > 1 and s == 0 for n, s in zip(value.size, stride, strict=True)):
        return value
    out = builder.empty(value.size, value.dtype, stride)
    if out.stride != stride:  # there are gaps: a part of something larger
        reach = 1 + sum((n - 1) * s for n, s in zip(value.size, stride, strict=True))
        out = replace(builder.empty([reach], value.dtype), size=value.size, stride=stride)
    return builder.copy(value, out)


def _input(builder: Builder, node: fx.Node) -> Value:
    fake = node.meta["val"]
    size, stride = tuple(_integers(fake.shape)), tuple(_integers(fake.stride()))
    _check_dtype(fake)
    builder.kernel.buffers[node.name] = Buffer(node.name, fake.dtype, size, stride, "input")
    builder.offsets[node.name] = _integers([fake.storage_offset()])[0]
    return Value(node.name, fake.dtype, size, stride)


def _check_dtype(fake: torch.Tensor) -> None:
    from .._C import DataFormats, get_device_dtype

    try:
        known = get_device_dtype(fake.dtype) != DataFormats.INVALID
    except (RuntimeError, TypeError, ValueError):
        known = False
    if not known:
        raise Unsupported(f"{fake.dtype}: the card has no format for it")


def _integers(sizes: Any) -> list[int]:
    return [_integer(n) for n in sizes]


def _integer(n: int | torch.SymInt) -> int:
    """A size as a number; a symbolic one is fixed to what this call has, and guarded."""
    if isinstance(n, torch.SymInt) and has_free_unbacked_symbols(n):
        raise Unsupported("a size that depends on values")
    return int(n)


def _inputs_first(kernel: Kernel) -> None:
    rank = {"input": 0, "output": 1, "internal": 2}
    kernel.buffers = dict(sorted(kernel.buffers.items(), key=lambda item: rank[item[1].kind]))


def _lower(builder: Builder, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """Adds one node's ops. Raises Unsupported, naming the op and its shapes, if the card cannot do it."""
    if node.target is operator.getitem:
        return values[node.args[0]][node.args[1]]  # type: ignore[index]
    lowering = LOWERINGS.get(node.target)  # type: ignore[call-overload]
    if lowering is None:
        raise Unsupported(f"{node.target} has no lowering for the card")
    builder.op, builder.meta = node.target, _numbers(node.meta.get("val"))
    builder.source, builder.hints = _source(node), dict(node.meta.get("custom", {}).get("spyre_hint", {}) or {})
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: values[n])
    for fake in _tensors(node.meta.get("val")):
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


class _Numbers:
    """The facts of a fake tensor as plain numbers: what lowerings ask of ``builder.meta``."""

    def __init__(self, fake: torch.Tensor) -> None:
        self.shape = tuple(_integers(fake.shape))
        self.dtype = fake.dtype
        self._stride = tuple(_integers(fake.stride()))

    def stride(self) -> tuple[int, ...]:
        return self._stride


def _numbers(meta: Any) -> Any:
    if isinstance(meta, torch.Tensor):
        return _Numbers(meta)
    if isinstance(meta, list | tuple):
        return tuple(_numbers(m) for m in meta)
    return meta


def _plain(args: Any) -> Any:
    """Arguments without symbols: sizes become the numbers of this call; nothing guards on symbols of other kinds."""

    def plain(arg: Any) -> Any:
        if isinstance(arg, torch.SymFloat | torch.SymBool):
            raise Unsupported("a number that changes between calls")
        return _integer(arg) if isinstance(arg, torch.SymInt) else arg

    return fx.node.map_aggregate(args, plain)


def _flat(args: Any) -> list[Value]:
    found: list[Value] = []
    fx.node.map_aggregate(args, lambda a: found.append(a) if isinstance(a, Value) else None)
    return found


def _short(value: Value) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.size)}"


def _tensors(meta: Any) -> list[torch.Tensor]:
    if isinstance(meta, torch.Tensor):
        return [meta]
    return [t for m in meta for t in _tensors(m)] if isinstance(meta, list | tuple) else []


def _source(node: fx.Node) -> str:
    """The user's line that a node comes from: the last frame of its stack trace."""
    trace = node.meta.get("stack_trace") or ""
    frames = [line.strip() for line in trace.split("\n") if line.strip().startswith("File ")]
    return frames[-1] if frames else ""


def _on_card(node: fx.Node) -> bool:
    return any(t.device.type == DEVICE_NAME for t in _tensors(node.meta.get("val")))


def _is_view(node: fx.Node) -> bool:
    """Whether an op gives the memory of its first argument: a view, or that argument itself after a change."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return node.target is aten._unsafe_view.default or any(r.alias_info for r in node.target._schema.returns)


def _is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


@dataclass
class _Segment:
    """Nodes that become one kernel."""

    builder: Builder = field(default_factory=Builder)
    nodes: list[fx.Node] = field(default_factory=list)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    bases: dict[str, fx.Node] = field(default_factory=dict)  # input buffer -> the node that provides it
    owners: dict[str, fx.Node] = field(default_factory=dict)  # buffer -> the node whose memory PyTorch says it is
    copies: dict[fx.Node, Value] = field(default_factory=dict)  # of nodes whose value lies in memory of another
    written: set[fx.Node] = field(default_factory=set)  # nodes whose memory it changes


class _Partition:
    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm, self.graph = gm, gm.graph
        self.segment = _Segment()
        self.lowered: set[fx.Node] = set()
        self.memory: dict[fx.Node, fx.Node] = {}  # view -> the node whose memory it shows
        self.real: dict[fx.Node, fx.Node] = {}  # old node -> node whose result is that tensor
        self.views: dict[fx.Node, tuple[fx.Node, Value]] = {}  # old node -> (base node, the view on it)
        self.count = 0

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node in self.lowered:
                continue
            self._note_memory(node)
            if node.op == "output":
                self.flush(node)
                self.provide(node)
            elif node.op == "call_function" and self.take(node):
                continue
            elif node.op not in ("placeholder", "get_attr"):
                self.outside(node)
        for node in reversed(list(self.graph.nodes)):
            if node in self.lowered and not node.users:
                self.graph.erase_node(node)
        self.graph.lint()
        self.gm.recompile()

    def _note_memory(self, node: fx.Node) -> None:
        source = node.args[0] if node.args else None
        if isinstance(source, fx.Node) and (
            _is_view(node) or (node.target is operator.getitem and source in self.memory)
        ):
            self.memory[node] = self.memory.get(source, source)

    def take(self, node: fx.Node) -> bool:
        """Whether the node became part of the current segment; one of several results takes those with it."""
        if not _on_card(node) or not self._all_on_card(node):
            return False
        segment = self.segment
        try:
            if node.target is operator.getitem and node.args[0] not in segment.values:
                return False
            for given in node.all_input_nodes:
                self.value(given)
            segment.values[node] = _lower(segment.builder, node, segment.values)
        except Unsupported as refusal:
            log.info("not on the card: %s", refusal)
            return False
        segment.nodes.append(node)
        self.lowered.add(node)
        value = segment.values[node]
        if _is_mutable(node):
            self._wrote(value.buffer, self.memory[node])
        if isinstance(value, Value):
            self._own(node, value)
        else:
            for user in list(node.users):
                self._note_memory(user)
                if user.target is operator.getitem:
                    self.take(user)
        return True

    def _own(self, node: fx.Node, value: Value) -> None:
        """Ops with nothing to do on the card give the value they got. What leaves the kernel has memory of its own."""
        segment, memory = self.segment, self.memory.get(node, node)
        if segment.owners.setdefault(value.buffer, memory) is not memory:
            builder = segment.builder
            segment.copies[node] = builder.copy(value, builder.empty(value.size, value.dtype, value.stride))

    def _wrote(self, buffer: str, memory: fx.Node) -> None:
        segment = self.segment
        segment.written.add(memory)
        for node, copy in segment.copies.items():
            if segment.values[node].buffer == buffer and segment.owners[buffer] is not self.memory.get(node, node):
                segment.values[node] = copy

    def _all_on_card(self, node: fx.Node) -> bool:
        tensors = [t for given in node.all_input_nodes for t in _tensors(given.meta.get("val"))]
        return all(t.device.type == DEVICE_NAME for t in tensors)

    def value(self, node: fx.Node) -> Any:
        """What a node is inside the current segment; tensors from outside become inputs of the kernel."""
        segment = self.segment
        if node in segment.values:
            return segment.values[node]
        meta = node.meta.get("val")
        if not isinstance(meta, torch.Tensor):
            segment.values[node] = meta
            return meta
        if node in self.views:
            base, view = self.views[node]
            root = self.value(base)
            found = Value(root.buffer, view.dtype, view.size, view.stride, root.offset + view.offset)
        else:
            found = _input(segment.builder, node)
            segment.bases[found.buffer] = node
        segment.owners.setdefault(found.buffer, self.memory.get(node, node))
        segment.values[node] = found
        return found

    def outside(self, node: fx.Node) -> None:
        """An op that is not the card's: what it needs of the current segment has to be there before it."""
        if self._conflicts(node):
            self.flush(node)
        touches = _on_card(node) or any(_on_card(given) for given in node.all_input_nodes)
        if touches and isinstance(node.target, torch._ops.OpOverload) and not _moves_devices(node):
            fall_back(node)
        self.provide(node)

    def _conflicts(self, node: fx.Node) -> bool:
        """Whether a node needs what the segment makes or changes, or changes what it reads."""
        segment = self.segment
        if set(node.all_input_nodes) & set(segment.nodes):
            return True
        memory = {self.memory.get(given, given) for given in node.all_input_nodes}
        return bool(memory & segment.written) or (_is_mutable(node) and bool(memory & set(segment.owners.values())))

    def provide(self, node: fx.Node) -> None:
        """Replaces the inputs of a node that stays by nodes that exist."""
        with self.graph.inserting_before(node):
            for given in list(node.all_input_nodes):
                real = self.materialized(given)
                if real is not given:
                    node.replace_input_with(given, real)

    def materialized(self, node: fx.Node) -> fx.Node:
        if node in self.real:
            return self.real[node]
        if node not in self.views:
            return node
        base, view = self.views[node]
        fake = base.meta["val"]
        if (
            tuple(fake.shape) == view.size
            and tuple(fake.stride()) == view.stride
            and not view.offset
            and fake.dtype == view.dtype
        ):
            return base
        offset = view.offset + int(fake.storage_offset())
        strided = self.graph.call_function(aten.as_strided.default, (base, view.size, view.stride, offset))
        strided.meta.update(val=node.meta["val"])
        if fake.dtype != view.dtype:
            raise AssertionError(f"{node} changes the dtype of {base} without a copy")
        self.real[node] = strided
        return strided

    def flush(self, before: fx.Node) -> None:
        """Ends the segment: one kernel call in front of ``before``."""
        segment, self.segment = self.segment, _Segment()
        inside = set(segment.nodes)
        wanted = [node for node in segment.nodes if any(user not in inside for user in node.users)]
        wanted = [node for node in wanted if isinstance(segment.values[node], Value)]
        kernel = segment.builder.kernel
        for node in wanted:
            value = segment.copies.get(node, segment.values[node])
            segment.values[node] = value = _as_promised(segment.builder, value, node)
            buffer = kernel.buffers[value.buffer]
            if not value.numel:
                self.real[node] = self._empty(node, before)
            elif buffer.kind == "internal":
                kernel.buffers[buffer.name] = replace(buffer, kind="output")
        dead_code(kernel)
        used = {name for op in kernel.ops for name in (op.out.buffer, *op.reads())}
        kernel.buffers = {n: b for n, b in kernel.buffers.items() if b.kind != "input" or n in used}
        _inputs_first(kernel)
        outputs: dict[str, fx.Node] = {}
        if kernel.ops or kernel.outputs():
            kernel.name = f"spyre_kernel_{self.count}"
            self.count += 1
            outputs = self._call(segment, kernel, before)
        for node in wanted:
            value = segment.values[node]
            if value.numel:
                self.views[node] = (outputs.get(value.buffer) or segment.bases[value.buffer], value)

    def _empty(self, node: fx.Node, before: fx.Node) -> fx.Node:
        """A tensor without elements: no kernel has anything to do with it."""
        fake = node.meta["val"]
        options = {"dtype": fake.dtype, "device": fake.device}
        with self.graph.inserting_before(before):
            empty = self.graph.call_function(aten.empty_strided.default, (fake.shape, fake.stride()), options)
        empty.meta["val"] = fake
        fall_back(empty)
        return empty

    def _call(self, segment: _Segment, kernel: Kernel, before: fx.Node) -> dict[str, fx.Node]:
        example = next(t for n in segment.nodes for t in _tensors(n.meta.get("val")))
        assert isinstance(example, FakeTensor)
        with example.fake_mode:
            fakes = [
                torch.empty_strided(b.size, b.stride, dtype=b.dtype, device=example.device) for b in kernel.outputs()
            ]
        with self.graph.inserting_before(before):
            inputs = [self.materialized(segment.bases[buffer.name]) for buffer in kernel.inputs()]
            nodes = call_kernel(self.graph, kernel, inputs, fakes)
        return {buffer.name: node for buffer, node in zip(kernel.outputs(), nodes, strict=True)}


def _moves_devices(node: fx.Node) -> bool:
    """Whether an op brings tensors from one device to another: Inductor has its own way for those."""
    devices = {t.device for n in node.all_input_nodes for t in _tensors(n.meta.get("val"))}
    devices |= {t.device for t in _tensors(node.meta.get("val"))}
    return len(devices) > 1 and node.target in (aten._to_copy.default, torch.ops.prims.device_put.default)
