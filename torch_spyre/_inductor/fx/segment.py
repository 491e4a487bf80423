"""A segment: the nodes that become one kernel, and the kernel as far as it is built.

Inside a kernel, values share buffers more freely than PyTorch's tensors share memory: a clone, or a cast between
formats that the card keeps alike, costs nothing. Outside it, a clone has memory of its own. So a segment keeps, for
every buffer, the node that owns its memory to PyTorch, and for every value whose node owns other memory, a copy. The
copy is used where the value leaves the kernel or one of the two is written; else it is dead code.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from ..loop_ir import Kernel
from ..loop_ir.builder import Builder, Value
from ..passes.dead_code import dead_code
from .lower import as_promised, lower_node, tensors_of
from .nodes import is_mutable

Memory = dict[fx.Node, fx.Node]  # of the graph: view -> the node that owns its memory


@dataclass
class Segment:
    memory: Memory
    builder: Builder = field(default_factory=Builder)
    nodes: list[fx.Node] = field(default_factory=list)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    bases: dict[str, fx.Node] = field(default_factory=dict)  # input buffer -> the node that provides it
    owners: dict[str, fx.Node] = field(default_factory=dict)  # buffer -> the node that owns its memory, to PyTorch
    copies: dict[fx.Node, Value] = field(default_factory=dict)  # node -> its copy, if another node owns its memory
    numbers: list[fx.Node] = field(default_factory=list)  # rows of integers on the host
    written: set[fx.Node] = field(default_factory=set)  # nodes whose memory the kernel changes

    def memory_of(self, node: fx.Node) -> fx.Node:
        return self.memory.get(node, node)

    @property
    def device(self) -> torch.device | None:
        return tensors_of(self.nodes[0].meta["val"])[0].device if self.nodes else None

    def add_input(self, node: fx.Node, value: Value) -> None:
        """A tensor from outside."""
        self.owners.setdefault(value.buffer, self.memory_of(node))
        self.values[node] = value

    def can_write(self, node: fx.Node) -> bool:
        """Whether the target of a change in place has its own memory here; a clone becomes its copy for this first."""
        target = node.args[0]
        assert isinstance(target, fx.Node)
        if target in self.copies:
            self.values[target] = copy = self.copies.pop(target)
            self.owners[copy.buffer] = self.memory_of(target)
        return self.memory_of(target) not in self.copies

    def lower(self, node: fx.Node) -> None:
        """Adds the node's loop ops; raises Unsupported, and is as before then."""
        self.values[node] = value = lower_node(self.builder, node, self.values)
        self.nodes.append(node)
        if is_mutable(node):
            self._note_write(value.buffer, self.memory[node])
        if isinstance(value, Value):
            self._prepare_copy(node, value)

    def _note_write(self, buffer: str, memory: fx.Node) -> None:
        """After a change in place, earlier clones of the buffer become their copies."""
        self.written.add(memory)
        for node, copy in self.copies.items():
            if self.values[node].buffer == buffer and self.owners[buffer] is not self.memory_of(node):
                self.values[node] = copy

    def _prepare_copy(self, node: fx.Node, value: Value) -> None:
        """Prepares a copy of a value in memory of another node (a clone, a free cast), in case it leaves the kernel."""
        memory = self.memory_of(node)
        if self.owners.setdefault(value.buffer, memory) is not memory:
            self.copies[node] = self._view_of_copy(memory, value) or self.builder.copy(
                value, self.builder.empty(value.size, value.dtype, value.stride)
            )

    def _view_of_copy(self, memory: fx.Node, value: Value) -> Value | None:
        """For a view of a node that has a copy: the same view of the copy, so that both still share memory."""
        copy = self.copies.get(memory)
        if copy is None:
            return None
        root = self.values[memory]
        if root.buffer != value.buffer or copy.stride != root.stride or copy.dtype != value.dtype:
            return None
        return replace(value, buffer=copy.buffer, offset=copy.offset + value.offset - root.offset)

    def conflicts_with(self, node: fx.Node) -> bool:
        """Whether a node outside uses what the segment computes or changes, or changes what the segment reads."""
        if set(node.all_input_nodes) & set(self.nodes):
            return True
        memory = {self.memory_of(given) for given in node.all_input_nodes}
        return bool(memory & self.written) or (is_mutable(node) and bool(memory & set(self.owners.values())))

    def results(self) -> list[fx.Node]:
        """Tensors that something outside uses: outputs of the kernel, with the strides that they were traced with."""
        inside, buffers = set(self.nodes), self.builder.kernel.buffers
        found = [node for node in self.nodes if any(user not in inside for user in node.users)]
        found = [node for node in found if isinstance(self.values[node], Value)]
        for node in found:
            value = self.copies.get(node, self.values[node])
            self.values[node] = value = as_promised(self.builder, value, node)
            buffer = buffers[value.buffer]
            if value.numel and buffer.kind == "internal":
                buffers[buffer.name] = replace(buffer, kind="output")
        return found

    def kernel(self) -> Kernel:
        """The kernel without what no result needs; inputs come first and outputs after them."""
        kernel = self.builder.kernel
        dead_code(kernel)
        used = {name for op in kernel.ops for name in (op.out.buffer, *op.reads())}
        kept = {name: b for name, b in kernel.buffers.items() if b.kind != "input" or name in used}
        rank = {"input": 0, "output": 1, "internal": 2}
        kernel.buffers = dict(sorted(kept.items(), key=lambda item: rank[item[1].kind]))
        return kernel
