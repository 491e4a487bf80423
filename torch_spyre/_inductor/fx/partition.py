"""Partitions an FX graph into kernels.

Before: a functional ATen graph, as AOTAutograd and Inductor's passes leave it. After: every maximal run of ops that the
card supports is one :class:`KernelCall`; ops that it does not support are a :class:`FallbackCall` each; ops of other
devices are unchanged. Views are part of kernels; a view that is used outside of one is an ``as_strided`` node.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor

from ...constants import DEVICE_NAME
from ...logging import get_logger
from .. import config
from ..errors import Unsupported
from ..loop_ir import Kernel
from ..loop_ir.builder import Builder, Value
from ..loop_ir.canonical import canonical
from ..lowerings import inductor_prims
from ..passes.dead_code import dead_code
from .decompositions.table import withheld_decompositions
from .kernel_call import call_kernel, fall_back
from .lower import as_promised, input_of, lower_node, tensors_of
from .recorded_kernels import kernel_graph, record_eager, recorders
from .schedule_collectives import is_wait

del inductor_prims  # its import registers lowerings
aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default)
log = get_logger(__name__)


def partition(gm: fx.GraphModule) -> None:
    """Rewrites ``gm`` in place."""
    _Partition(gm).run()


def _inputs_first(kernel: Kernel) -> None:
    rank = {"input": 0, "output": 1, "internal": 2}
    kernel.buffers = dict(sorted(kernel.buffers.items(), key=lambda item: rank[item[1].kind]))


def _on_card(node: fx.Node) -> bool:
    return any(t.device.type == DEVICE_NAME for t in tensors_of(node.meta.get("val")))


def _is_view(node: fx.Node) -> bool:
    """Whether an op returns memory of its first argument: a view, or the argument itself after a change in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return node.target is aten._unsafe_view.default or any(r.alias_info for r in node.target._schema.returns)


def _is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


@dataclass
class _Segment:
    """The nodes that become one kernel, and the kernel as far as it is built."""

    builder: Builder = field(default_factory=Builder)
    nodes: list[fx.Node] = field(default_factory=list)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    bases: dict[str, fx.Node] = field(default_factory=dict)  # input buffer -> the node that provides it
    owners: dict[str, fx.Node] = field(default_factory=dict)  # buffer -> the node that owns its memory, to PyTorch
    copies: dict[fx.Node, Value] = field(default_factory=dict)  # node -> its copy, if another node owns its memory
    written: set[fx.Node] = field(default_factory=set)  # nodes whose memory the kernel changes


class _Partition:
    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm, self.graph = gm, gm.graph
        self.segment = _Segment()
        self.lowered: set[fx.Node] = set()
        self.memory: dict[fx.Node, fx.Node] = {}  # view -> the node that owns its memory
        self.real: dict[fx.Node, fx.Node] = {}  # old node -> the new node with the same result
        self.views: dict[fx.Node, tuple[fx.Node, Value]] = {}  # old node -> (base node, its view of that)
        self.numbers: dict[tuple[fx.Node, torch.device], fx.Node] = {}  # (0-dim CPU tensor, card) -> its copy there
        self.count = 0

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node in self.lowered:
                continue
            self._note_memory(node)
            if node.op == "output":
                self.flush(node)
                self.provide(node)
            elif node.op == "call_function" and self._take_or_separate(node):
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

    def _take_or_separate(self, node: fx.Node) -> bool:
        """Calls :meth:`take`. With ``planning="op_by_op"``, a matrix product becomes a kernel of its own."""
        separate = config.planning == "op_by_op" and node.target in PRODUCTS and _on_card(node)
        if separate:
            self.flush(node)
        taken = self.take(node)
        if separate and taken:
            self.flush(node.next)
        return taken

    def take(self, node: fx.Node) -> bool:
        """Adds a node to the current segment if the card supports it, with the ``getitem`` nodes of its results."""
        copied = self._copy_numbers(node) if _on_card(node) else {}
        if not _on_card(node) or not self._all_on_card(node):
            return False
        segment = self.segment
        try:
            if node.target is operator.getitem and node.args[0] not in segment.values:
                return False
            for given in node.all_input_nodes:
                self.value(given)
            if _is_mutable(node) and not self._owns_target(node):
                return False
            segment.values[node] = lower_node(segment.builder, node, segment.values)
        except Unsupported as refusal:
            log.info("not on the card: %s", refusal)
            for copy, number in copied.items():
                node.replace_input_with(copy, number)
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

    def _copy_numbers(self, node: fx.Node) -> dict[fx.Node, fx.Node]:
        """Pointwise ops accept 0-dim CPU tensors: copies them to the card. Returns copy -> original."""
        if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.pointwise not in node.target.tags:
            return {}
        device = tensors_of(node.meta["val"])[0].device
        copied = {}
        for given in node.all_input_nodes:
            if not _is_number(given.meta.get("val")):
                continue
            if (given, device) not in self.numbers:
                with self.graph.inserting_before(node):
                    self.numbers[given, device] = _copy_to(self.graph, given, device)
            copy = self.numbers[given, device]
            node.replace_input_with(given, copy)
            copied[copy] = given
        return copied

    def _owns_target(self, node: fx.Node) -> bool:
        """Whether a node's target owns the memory that the node changes; a clone becomes a copy for this first."""
        segment, target = self.segment, node.args[0]
        assert isinstance(target, fx.Node)
        if target in segment.copies:
            segment.values[target] = copy = segment.copies.pop(target)
            segment.owners[copy.buffer] = self.memory.get(target, target)
        return self.memory.get(target, target) not in segment.copies

    def _own(self, node: fx.Node, value: Value) -> None:
        """Prepares a copy of a value in memory of another node (a clone, a free cast), in case it leaves the kernel."""
        segment, memory = self.segment, self.memory.get(node, node)
        if segment.owners.setdefault(value.buffer, memory) is not memory:
            builder = segment.builder
            segment.copies[node] = self._view_of_copy(memory, value) or builder.copy(
                value, builder.empty(value.size, value.dtype, value.stride)
            )

    def _view_of_copy(self, memory: fx.Node, value: Value) -> Value | None:
        """For a view of a node that has a copy: the same view of the copy, so that both still share memory."""
        copy = self.segment.copies.get(memory)
        if copy is None:
            return None
        root = self.segment.values[memory]
        if root.buffer != value.buffer or copy.stride != root.stride or copy.dtype != value.dtype:
            return None
        return replace(value, buffer=copy.buffer, offset=copy.offset + value.offset - root.offset)

    def _wrote(self, buffer: str, memory: fx.Node) -> None:
        """After a change in place, earlier clones of the buffer become their copies."""
        segment = self.segment
        segment.written.add(memory)
        for node, copy in segment.copies.items():
            if segment.values[node].buffer == buffer and segment.owners[buffer] is not self.memory.get(node, node):
                segment.values[node] = copy

    def _all_on_card(self, node: fx.Node) -> bool:
        """Whether all tensors of a node are on one card. The segment ends if its card is another one."""
        tensors = [t for each in (node, *node.all_input_nodes) for t in tensors_of(each.meta.get("val"))]
        if any(t.device.type != DEVICE_NAME for t in tensors) or len({t.device for t in tensors}) != 1:
            return False
        if self.segment.nodes and tensors_of(self.segment.nodes[0].meta["val"])[0].device != tensors[0].device:
            self.flush(node)
        return True

    def value(self, node: fx.Node) -> Any:
        """The value of a node inside the current segment; tensors from outside become inputs of the kernel."""
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
            found = input_of(segment.builder, node)
            segment.bases[found.buffer] = node
        segment.owners.setdefault(found.buffer, self.memory.get(node, node))
        segment.values[node] = found
        return found

    def outside(self, node: fx.Node) -> None:
        """A node that stays outside of kernels; ends the segment first if the node depends on it.

        So does a wait: what can be computed before it is computed before it.
        """
        if self._conflicts(node) or (is_wait(node) and self.segment.nodes):
            self.flush(node)
        if recorders:
            record_eager(node, self.gm)
        touches = _on_card(node) or any(_on_card(given) for given in node.all_input_nodes)
        if isinstance(node.target, torch._ops.OpOverload) and (
            node.target in withheld_decompositions()
            or (touches and not _moves_devices(node) and node.target is not aten._local_scalar_dense.default)
            or _computes_number(node)
        ):
            fall_back(node)
        self.provide(node)

    def _conflicts(self, node: fx.Node) -> bool:
        """Whether a node uses what the segment computes or changes, or changes what the segment reads."""
        segment = self.segment
        if set(node.all_input_nodes) & set(segment.nodes):
            return True
        memory = {self.memory.get(given, given) for given in node.all_input_nodes}
        return bool(memory & segment.written) or (_is_mutable(node) and bool(memory & set(segment.owners.values())))

    def provide(self, node: fx.Node) -> None:
        """Replaces the inputs of a node outside of kernels by nodes of the new graph."""
        with self.graph.inserting_before(node):
            for given in list(node.all_input_nodes):
                real = self.materialized(given)
                if real is not given:
                    node.replace_input_with(given, real)

    def materialized(self, node: fx.Node) -> fx.Node:
        """The node of the new graph whose result is this node's tensor."""
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
        """Ends the segment and inserts its kernel call in front of ``before``."""
        segment, self.segment = self.segment, _Segment()
        inside = set(segment.nodes)
        wanted = [node for node in segment.nodes if any(user not in inside for user in node.users)]
        wanted = [node for node in wanted if isinstance(segment.values[node], Value)]
        kernel = segment.builder.kernel
        for node in wanted:
            value = segment.copies.get(node, segment.values[node])
            segment.values[node] = value = as_promised(segment.builder, value, node)
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
            self._record(segment, kernel, wanted, outputs)
        for node in wanted:
            value = segment.values[node]
            if value.numel:
                self.views[node] = (outputs.get(value.buffer) or segment.bases[value.buffer], value)

    def _record(self, segment: _Segment, kernel: Kernel, wanted: list[fx.Node], outputs: dict[str, fx.Node]) -> None:
        if not recorders or not outputs and not kernel.written_inputs():
            return
        arguments = [buffer.name for buffer in (*kernel.inputs(), *kernel.outputs())]
        found = kernel_graph(segment.nodes, segment.values, wanted, arguments)
        for records in recorders:
            records.kernels[canonical(kernel).to_json()] = found

    def _empty(self, node: fx.Node, before: fx.Node) -> fx.Node:
        """A tensor without elements is allocated outside of the kernel, which has nothing to compute for it."""
        fake = node.meta["val"]
        options = {"dtype": fake.dtype, "device": fake.device}
        with self.graph.inserting_before(before):
            empty = self.graph.call_function(aten.empty_strided.default, (fake.shape, fake.stride()), options)
        empty.meta["val"] = fake
        fall_back(empty)
        return empty

    def _call(self, segment: _Segment, kernel: Kernel, before: fx.Node) -> dict[str, fx.Node]:
        example = next(t for n in segment.nodes for t in tensors_of(n.meta.get("val")))
        assert isinstance(example, FakeTensor)
        with example.fake_mode:
            fakes = [
                torch.empty_strided(b.size, b.stride, dtype=b.dtype, device=example.device) for b in kernel.outputs()
            ]
        with self.graph.inserting_before(before):
            inputs = [self.materialized(segment.bases[buffer.name]) for buffer in kernel.inputs()]
            nodes = call_kernel(self.graph, kernel, inputs, fakes)
        return {buffer.name: node for buffer, node in zip(kernel.outputs(), nodes, strict=True)}


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0 and not value.is_complex()
    )


def _computes_number(node: fx.Node) -> bool:
    """Whether an op computes a 0-dim CPU tensor from others: generated C++ for it would save nothing."""
    values = [given.meta.get("val") for given in (node, *node.all_input_nodes)]
    return not _is_mutable(node) and not _is_view(node) and all(map(_is_number, values))


def _copy_to(graph: fx.Graph, number: fx.Node, device: torch.device) -> fx.Node:
    """A copy of a 0-dim CPU tensor on the card; float64 becomes float32, the widest format of the card."""
    fake = number.meta["val"]
    dtype = torch.float32 if fake.dtype == torch.float64 else fake.dtype
    copy = graph.call_function(aten._to_copy.default, (number,), {"dtype": dtype, "device": device})
    with fake.fake_mode:
        copy.meta["val"] = torch.empty((), dtype=dtype, device=device)
    fall_back(copy)
    return copy


def _moves_devices(node: fx.Node) -> bool:
    """Whether an op copies tensors between devices: Inductor generates these copies itself."""
    devices = {t.device for n in node.all_input_nodes for t in tensors_of(n.meta.get("val"))}
    devices |= {t.device for t in tensors_of(node.meta.get("val"))}
    return len(devices) > 1 and node.target in (aten._to_copy.default, torch.ops.prims.device_put.default)
