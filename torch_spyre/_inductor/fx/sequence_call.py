"""The node that stands for a launch sequence: kernels and ops of the card that the host starts by one call.

In the generated module it is a line like that of a kernel, ``buf0 = launch_sequence_0([arg0_1, arg1_1])``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from .kernel_call import CallLine, KernelCall, define_kernel, define_once, empty_tensors, lowering, written_positions


@dataclass(frozen=True)
class KernelStep:
    """A call of a kernel. Values are numbered: the inputs of the sequence, then what the steps make."""

    call: KernelCall
    inputs: list[int]
    results: list[int]

    def uses(self) -> Iterator[int]:
        yield from self.inputs


@dataclass(frozen=True)
class OpStep:
    """A call of an op: one that starts a collective or waits for it, or a view.

    Arguments are constants, ``(n,)`` for value n, and lists of either.
    """

    op: torch._ops.OpOverload
    arguments: list[Any]
    results: list[int]

    def uses(self) -> Iterator[int]:
        for argument in self.arguments:
            for each in argument if isinstance(argument, list) else (argument,):
                if isinstance(each, tuple):
                    yield from each


class SequenceCall:
    """A call of a launch sequence with its inputs; it returns the list of results, which are ``fakes``."""

    _inductor_lowering_function = True

    def __init__(
        self,
        device: torch.device,
        steps: Sequence[KernelStep | OpStep],
        results: list[int],
        fakes: Sequence[torch.Tensor],
    ) -> None:
        self.device, self.steps, self.results = device, steps, results
        self.made = [(tuple(fake.shape), tuple(fake.stride()), fake.dtype, fake.device) for fake in fakes]
        self.__name__ = self.__qualname__ = "launch_sequence"  # FX prints targets by name

    def __call__(self, *inputs: Any) -> list[Any]:
        return list(_SequenceLine(self, inputs).results(self.made) if lowering() else empty_tensors(self.made))

    def source(self, names: dict[int, str], inputs: int) -> str:
        """The sequence as generated code makes it, where the kernels of steps have these names."""
        last = {value: at for at, step in enumerate(self.steps) for value in (*step.results, *step.uses())}
        texts = []
        for at, step in enumerate(self.steps):
            dead = sorted(value for value, end in last.items() if end == at and value not in self.results)
            if isinstance(step, KernelStep):
                texts.append(f"({names[at]}, {step.inputs}, {step.results}, {dead})")
            else:
                schema = step.op._schema
                op = f"{schema.name!r}, {schema.overload_name!r}"
                texts.append(f"({op}, {step.arguments!r}, {step.results}, {dead})")
        return f"LaunchSequence({inputs}, [{', '.join(texts)}], {self.results})"


class _SequenceLine(CallLine):
    def __init__(self, call: SequenceCall, inputs: Sequence[ir.IRNode]) -> None:
        kernels = [step for step in call.steps if isinstance(step, KernelStep)]
        written = {step.inputs[position] for step in kernels for position in written_positions(step.call.kernel)}
        super().__init__(call.device, inputs, sorted(value for value in written if value < len(inputs)))
        self.call = call
        self.given_to_kernels = {value for step in kernels for value in step.inputs}

    def codegen(self, wrapper: Any) -> None:
        names = {
            at: define_kernel(wrapper, step.call, f"{self.get_name()}_{at}")
            for at, step in enumerate(self.call.steps)
            if isinstance(step, KernelStep)
        }
        source = self.call.source(names, len(self.inputs))
        name = define_once(wrapper, source, "launch_sequence", "from torch_spyre._C import LaunchSequence")
        self.codegen_comment(wrapper, name)
        given = f"{self.get_name()}_inputs"
        wrapper.writeline(f"{given} = [{', '.join(self.references())}]")
        # What nobody uses later is the sequence's alone: it is freed behind its last use there.
        scheduled = V.graph.scheduler.current_node
        for last in sorted(scheduled.last_usage if scheduled else ()):
            if last in V.graph.graph_inputs or last in V.graph.name_to_buffer:
                wrapper.writeline(f"{last} = None")
        wrapper.writeline(f"{self.get_name()} = {name}({given})")

    def checked(self) -> Sequence[Any]:
        return [each for value, each in enumerate(self.inputs) if value in self.given_to_kernels]
