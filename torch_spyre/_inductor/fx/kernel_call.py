"""The nodes that the partition puts into an FX graph: calls of card kernels, and ops that run eagerly.

Both are targets of ``call_function`` nodes. Inductor calls these targets with nodes of its own IR in place of tensors.
A kernel becomes one line of the generated module, ``buf0 = spyre_kernel_0(arg0_1, arg1_1)``, and its text becomes a
constant of that module.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import fallback_handler
from torch._inductor.virtualized import V
from torch.fx import Graph, Node

from ..loop_ir import Kernel
from ..loop_ir.canonical import canonical

Made = Sequence[tuple[Sequence[int], Sequence[int], torch.dtype, torch.device]]  # size, strides, dtype, device


class KernelCall:
    """A call of a kernel with its inputs, and rows of numbers on the host; it returns the list of outputs."""

    _inductor_lowering_function = True

    def __init__(self, kernel: Kernel, device: torch.device) -> None:
        self.kernel, self.device = canonical(kernel), device
        self.nodes = [op.nodes for op in kernel.ops]
        self.__name__ = self.__qualname__ = self.kernel.name  # FX prints targets by name

    def __call__(self, *inputs: Any) -> list[Any]:
        made = [(out.size, out.stride, out.dtype, self.device) for out in self.kernel.outputs()]
        return _KernelLine(self, inputs).results(made) if lowering() else empty_tensors(made)


class FallbackCall:
    """A call of an op outside of kernels: its eager kernel on the card, or the CPU, with a warning."""

    _inductor_lowering_function = True

    def __init__(self, op: torch._ops.OpOverload) -> None:
        self.op = op
        self.__name__ = self.__qualname__ = f"eager_{op.__name__.replace('.', '_')}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not lowering():
            return self.op(*args, **kwargs)
        return fallback_handler(self.op, add_to_fallback_set=False)(*args, **kwargs)


def lowering() -> bool:
    """Whether Inductor is lowering the graph; if not, it runs a branch of the program on fake tensors for shapes."""
    return isinstance(V.graph, GraphLowering)


def call_kernel(graph: Graph, kernel: Kernel, inputs: Sequence[Node], values: Sequence[torch.Tensor]) -> list[Node]:
    """Inserts a call of ``kernel``; returns one node per output. ``values`` are the outputs as fake tensors."""
    device = (values[0] if values else inputs[0].meta["val"]).device
    node = graph.call_function(KernelCall(kernel, device), tuple(inputs))
    node.meta["val"] = list(values)
    outputs = []
    for position, value in enumerate(values):
        outputs.append(graph.call_function(operator.getitem, (node, position)))
        outputs[-1].meta["val"] = value
    return outputs


def fall_back(node: Node) -> None:
    """Makes a node run its op eagerly."""
    node.target = FallbackCall(node.target)  # type: ignore[arg-type]


def empty_tensors(made: Made) -> list[torch.Tensor]:
    return [torch.empty_strided(size, stride, dtype=dtype, device=on) for size, stride, dtype, on in made]


class CallLine(ir.ExternKernel):
    """A call in Inductor's IR. It takes inputs with any strides, views included, and allocates its outputs itself.

    ``written`` are the positions of inputs that it changes.
    """

    def __init__(self, device: torch.device, inputs: Sequence[ir.IRNode], written: Collection[int]) -> None:
        realized = [ir.ExternKernel.realize_input(each) for each in inputs]
        super().__init__(None, ir.MultiOutputLayout(device=device), realized)
        self.outputs: list[ir.MultiOutput] = []
        self.name = V.graph.register_buffer(self)
        V.graph.register_operation(self)
        self.mutation_outputs = [
            ir.MutationOutput(ir.NoneLayout(device=device), realized[position], self) for position in written
        ]

    def results(self, made: Made) -> list[ir.TensorBox]:
        self.outputs = [
            ir.MultiOutput(
                ir.FixedLayout(on, dtype, list(size), list(stride)),
                self,
                [(list, position)],
                skip_size_stride_alignment_checks=True,  # they are allocated with this size and these strides
            )
            for position, (size, stride, dtype, on) in enumerate(made)
        ]
        return [ir.TensorBox.create(out) for out in self.outputs]

    def references(self) -> list[str]:
        """The inputs in generated code."""
        assert ir.is_node_sequence(self.inputs)
        return [each.codegen_reference() for each in self.inputs]

    def should_allocate(self) -> bool:
        return False

    def has_side_effects(self) -> bool:
        return bool(self.mutation_outputs)

    def checked(self) -> Sequence[Any]:
        """Inputs whose sizes and strides the call compares itself."""
        raise NotImplementedError


class _KernelLine(CallLine):
    def __init__(self, call: KernelCall, inputs: Sequence[ir.IRNode]) -> None:
        super().__init__(call.device, inputs, written_positions(call.kernel))
        self.call = call

    def codegen(self, wrapper: Any) -> None:
        name = define_kernel(wrapper, self.call, self.get_name())
        self.codegen_comment(wrapper, name)
        wrapper.writeline(f"{self.get_name()} = {name}({', '.join(self.references())})")

    def checked(self) -> Sequence[Any]:
        return self.inputs


def written_positions(kernel: Kernel) -> list[int]:
    """Which inputs a kernel changes."""
    changed = {buffer.name for buffer in kernel.written_inputs()}
    return [position for position, buffer in enumerate(kernel.inputs()) if buffer.name in changed]


def define_once(wrapper: Any, source: str, prefix: str, *imports: str) -> str:
    """The name of an object in the generated module; alike ones are defined once."""
    if source not in wrapper.src_to_kernel:
        name = f"{prefix}_{len(wrapper.src_to_kernel)}"
        wrapper.src_to_kernel[source] = name
        for line in imports:
            wrapper.add_import_once(line)
        wrapper.define_kernel(name, source, gpu=False)
    return str(wrapper.src_to_kernel[source])


def define_kernel(wrapper: Any, call: KernelCall, caller: str) -> str:
    """The kernel's name in the generated module, where ``caller`` is the buffer that calls it."""
    source = f"SpyreKernel({_literal(call.kernel.to_json())}, {call.device.index})"
    name = define_once(wrapper, source, "spyre_kernel", "from torch_spyre.execution.kernel import SpyreKernel, occurs")
    wrapper.define_kernel(f"nodes_of_{caller}", f"occurs({name}, {call.nodes!r})", gpu=False)
    return name


def _literal(text: str) -> str:
    """A string literal that survives the generated file's re-indentation: one line, quotes and newlines escaped."""
    return repr(text)


class GeneratedCode(PythonWrapperCodegen):
    """The generated module. Kernels compare the sizes and strides of their inputs themselves, all in one call."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: ir.GraphPartitionSignature | None = None,
    ) -> PythonWrapperCodegen:
        if is_subgraph:
            return PythonWrapperCodegen.create(is_subgraph, subgraph_name, parent_wrapper, partition_signatures)
        return GeneratedCode()

    def codegen_input_size_asserts(self) -> None:
        super().codegen_input_size_asserts()
        calls = (operation for operation in V.graph.operations if isinstance(operation, CallLine))
        for given in (each for call in calls for each in call.checked()):
            # The check stays if the kernel gets a view: it sees the view's strides and not the input's.
            if isinstance(given, ir.StorageBox) and isinstance(given.data, ir.InputBuffer):
                self._pending_input_asserts.pop(given.get_name(), None)
