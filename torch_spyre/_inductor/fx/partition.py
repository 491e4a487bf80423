"""Partitions an FX graph into kernels.

Before: a functional ATen graph, as AOTAutograd and Inductor's passes leave it. After: every maximal run of ops that the
card supports is one :class:`KernelCall`; ops that it does not support are a :class:`FallbackCall` each; ops of other
devices and collectives are unchanged. Views are part of kernels; a view that is used outside of one is an
``as_strided`` node.

The nodes are visited in order. A node that the card supports joins the current segment (``segment.py``); any other is
left outside, and ends the segment first if it depends on it. Where a segment ends, its kernel's call is inserted.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor

from ...constants import DEVICE_NAME
from ...logging import get_logger
from .. import config
from ..errors import Unsupported
from ..loop_ir import Kernel
from ..loop_ir.builder import Value
from ..loop_ir.canonical import canonical
from ..lowerings import inductor_prims
from .decompositions.table import withheld_decompositions
from .kernel_call import call_kernel, fall_back
from .lower import input_of, is_host_numbers, numbers_of, tensors_of
from .nodes import computes_number, copy_to_card, is_mutable, is_number, is_view, moves_devices, on_card
from .recorded_kernels import kernel_graph, record_eager, recorders
from .schedule_collectives import is_collective, is_wait
from .segment import Segment

del inductor_prims  # its import registers lowerings
aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default)
log = get_logger(__name__)


def partition(gm: fx.GraphModule) -> None:
    """Rewrites ``gm`` in place."""
    _Partition(gm).run()


class _Partition:
    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm, self.graph = gm, gm.graph
        self.memory: dict[fx.Node, fx.Node] = {}  # view -> the node that owns its memory
        self.segment = Segment(self.memory)
        self.lowered: set[fx.Node] = set()  # nodes that are in some kernel
        self.real: dict[fx.Node, fx.Node] = {}  # old node -> the new node with the same result
        self.views: dict[fx.Node, tuple[fx.Node, Value]] = {}  # old node -> (base node, its view of that)
        self.numbers: dict[tuple[fx.Node, torch.device], fx.Node] = {}  # (0-dim CPU tensor, card) -> its copy there
        self.kernels = 0

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node in self.lowered:
                continue
            self._note_memory(node)
            if node.op == "output":
                self._end_segment(node)
                self._use_new_nodes(node)
            elif node.op == "call_function" and self._join_or_separate(node):
                continue
            elif node.op not in ("placeholder", "get_attr"):
                self._leave_outside(node)
        for node in reversed(list(self.graph.nodes)):
            if node in self.lowered and not node.users:
                self.graph.erase_node(node)
        self.graph.lint()
        self.gm.recompile()

    def _note_memory(self, node: fx.Node) -> None:
        source = node.args[0] if node.args else None
        if isinstance(source, fx.Node) and (
            is_view(node) or (node.target is operator.getitem and source in self.memory)
        ):
            self.memory[node] = self.memory.get(source, source)

    # --- nodes of kernels

    def _join_or_separate(self, node: fx.Node) -> bool:
        """Calls :meth:`_join`. With ``planning="op_by_op"``, a matrix product becomes a kernel of its own."""
        separate = config.planning == "op_by_op" and node.target in PRODUCTS and on_card(node)
        if separate:
            self._end_segment(node)
        joined = self._join(node)
        if separate and joined:
            self._end_segment(node.next)
        return joined

    def _join(self, node: fx.Node) -> bool:
        """Adds a node to the current segment if the card supports it, with the ``getitem`` nodes of its results."""
        copied = self._copy_numbers(node) if on_card(node) else {}
        if not on_card(node) or not self._all_on_card(node):
            return False
        segment = self.segment
        try:
            if node.target is operator.getitem and node.args[0] not in segment.values:
                return False
            for given in node.all_input_nodes:
                self._value(given)
            if is_mutable(node) and not segment.can_write(node):
                return False
            segment.lower(node)
        except Unsupported as refusal:
            log.info("not on the card: %s", refusal)
            for copy, number in copied.items():
                node.replace_input_with(copy, number)
            return False
        self.lowered.add(node)
        if not isinstance(segment.values[node], Value):
            for user in list(node.users):
                self._note_memory(user)
                if user.target is operator.getitem:
                    self._join(user)
        return True

    def _copy_numbers(self, node: fx.Node) -> dict[fx.Node, fx.Node]:
        """Pointwise ops accept 0-dim CPU tensors: copies them to the card. Returns copy -> original."""
        if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.pointwise not in node.target.tags:
            return {}
        device = tensors_of(node.meta["val"])[0].device
        copied = {}
        for given in node.all_input_nodes:
            if not is_number(given.meta.get("val")):
                continue
            if (given, device) not in self.numbers:
                with self.graph.inserting_before(node):
                    self.numbers[given, device] = copy_to_card(self.graph, given, device)
            copy = self.numbers[given, device]
            node.replace_input_with(given, copy)
            copied[copy] = given
        return copied

    def _all_on_card(self, node: fx.Node) -> bool:
        """Whether all tensors of a node are on one card. The segment ends if its card is another one."""
        numbers = numbers_of(node)
        given = [each for each in node.all_input_nodes if each not in numbers]
        tensors = [t for each in (node, *given) for t in tensors_of(each.meta.get("val"))]
        if any(t.device.type != DEVICE_NAME for t in tensors) or len({t.device for t in tensors}) != 1:
            return False
        if self.segment.device not in (None, tensors[0].device):
            self._end_segment(node)
        return True

    def _value(self, node: fx.Node) -> Any:
        """The value of a node inside the current segment; tensors from outside become inputs of the kernel."""
        segment = self.segment
        if node in segment.values:
            return segment.values[node]
        meta = node.meta.get("val")
        if not isinstance(meta, torch.Tensor):
            segment.values[node] = meta
            return meta
        if is_host_numbers(node):
            segment.values[node] = segment.builder.host_numbers(meta.size(0))
            segment.numbers.append(node)
            return segment.values[node]
        if node in self.views:
            base, view = self.views[node]
            root = self._value(base)
            found = Value(root.buffer, view.dtype, view.size, view.stride, root.offset + view.offset)
        else:
            found = input_of(segment.builder, node)
            segment.bases[found.buffer] = node
        segment.add_input(node, found)
        return found

    # --- nodes outside of kernels

    def _leave_outside(self, node: fx.Node) -> None:
        """Ends the segment first if the node depends on it; an op of the card runs on the CPU.

        A wait for a collective ends it too: what can be computed before it is computed before it.
        """
        if self.segment.conflicts_with(node) or (is_wait(node) and self.segment.nodes):
            self._end_segment(node)
        if recorders:
            record_eager(node, self.gm)
        touches = on_card(node) or any(on_card(given) for given in node.all_input_nodes)
        if (
            isinstance(node.target, torch._ops.OpOverload)
            and not is_collective(node)
            and (
                node.target in withheld_decompositions()
                or (touches and not moves_devices(node) and node.target is not aten._local_scalar_dense.default)
                or computes_number(node)
            )
        ):
            fall_back(node)
        self._use_new_nodes(node)

    def _use_new_nodes(self, node: fx.Node) -> None:
        """Replaces the inputs of a node outside of kernels by nodes of the new graph."""
        with self.graph.inserting_before(node):
            for given in list(node.all_input_nodes):
                real = self._new_node(given)
                if real is not given:
                    node.replace_input_with(given, real)

    def _new_node(self, node: fx.Node) -> fx.Node:
        """The node of the new graph whose result is this node's tensor: a kernel's result, or a view of it."""
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

    # --- the call of a kernel

    def _end_segment(self, before: fx.Node) -> None:
        """Ends the segment and inserts its kernel call in front of ``before``."""
        segment, self.segment = self.segment, Segment(self.memory)
        results = segment.results()
        for node in results:
            if not segment.values[node].numel:
                self.real[node] = self._empty(node, before)
        kernel = segment.kernel()
        outputs: dict[str, fx.Node] = {}
        if kernel.ops or kernel.outputs():
            kernel.name = f"spyre_kernel_{self.kernels}"
            self.kernels += 1
            outputs = self._call(segment, kernel, before)
            self._record(segment, kernel, results, outputs)
        for node in results:
            value = segment.values[node]
            if value.numel:
                self.views[node] = (outputs.get(value.buffer) or segment.bases[value.buffer], value)

    def _empty(self, node: fx.Node, before: fx.Node) -> fx.Node:
        """A tensor without elements is allocated outside of the kernel, which has nothing to compute for it."""
        fake = node.meta["val"]
        options = {"dtype": fake.dtype, "device": fake.device}
        with self.graph.inserting_before(before):
            empty = self.graph.call_function(aten.empty_strided.default, (fake.shape, fake.stride()), options)
        empty.meta["val"] = fake
        fall_back(empty)
        return empty

    def _call(self, segment: Segment, kernel: Kernel, before: fx.Node) -> dict[str, fx.Node]:
        """The nodes of the kernel's outputs."""
        example = next(t for n in segment.nodes for t in tensors_of(n.meta.get("val")))
        assert isinstance(example, FakeTensor)
        with example.fake_mode:
            fakes = [
                torch.empty_strided(b.size, b.stride, dtype=b.dtype, device=example.device) for b in kernel.outputs()
            ]
        with self.graph.inserting_before(before):
            inputs = [self._new_node(segment.bases[buffer.name]) for buffer in kernel.inputs()]
            inputs += [self._new_node(node) for node in segment.numbers]
            nodes = call_kernel(self.graph, kernel, inputs, fakes)
        return {buffer.name: node for buffer, node in zip(kernel.outputs(), nodes, strict=True)}

    def _record(self, segment: Segment, kernel: Kernel, results: list[fx.Node], outputs: dict[str, fx.Node]) -> None:
        """Tells those who follow kernels, as torch.spyre.compare does, which nodes became this one."""
        if not recorders or not outputs and not kernel.written_inputs():
            return
        arguments = [buffer.name for buffer in (*kernel.inputs(), *kernel.outputs())]
        found = kernel_graph(segment.nodes, segment.values, results, arguments)
        for records in recorders:
            records.kernels[canonical(kernel).to_json()] = found
