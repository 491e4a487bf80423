"""One eager call: its tensors on the card, its numbers, and calls of the same op with other tensors in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from .. import _C
from ..constants import DEVICE_NAME
from . import lowered

aten = torch.ops.aten
Results = list[torch.Tensor | None]

# Factory functions with out=: the result has the dtype and device of that tensor.
_FACTORIES = {
    aten.linspace.out: aten.linspace.default,
    aten.eye.out: aten.eye.default,
    aten.eye.m_out: aten.eye.m,
}


@cache
def functional_overload(op: OpOverload) -> OpOverload | None:
    """The overload that computes the same and writes into no argument; None if there is none."""
    if op in _FACTORIES:
        return _FACTORIES[op]
    name, overload = _C.functional_overload(op._schema.name, op._schema.overload_name)
    namespace, packet = name.split("::")
    found = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    return None if found._schema.is_mutable else found


def written_arguments(op: OpOverload) -> list[int]:
    """Positions of the arguments that the op writes into, in the order of its results."""
    return [i for i, each in enumerate(op._schema.arguments) if each.alias_info and each.alias_info.is_write]


class Call:
    """One call of an op.

    ``tensors`` are its tensors on the card, with lists flattened. ``inputs`` are positions in ``tensors``: each view
    counts once, at its first position. ``numbers`` has the values of tensors on the host. ``written`` are the positions
    in ``tensors`` of what the op writes into. The arguments at ``scalar_positions`` are numbers that differ between
    calls with this signature.
    """

    def __init__(
        self, op: OpOverload, functional: OpOverload, values: Sequence[Any], scalar_positions: Sequence[int]
    ) -> None:
        self.op, self.functional, self.values, self.scalar_positions = op, functional, values, scalar_positions
        leaves = [leaf for value in values for leaf in (value if isinstance(value, list) else [value])]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.tensors = [tensor for tensor in tensors if tensor.device.type == DEVICE_NAME]
        # Tensors on the host have no dimensions: they are numbers to the op, or the kernel makes tensors of them.
        self.numbers = {id(tensor): tensor.item() for tensor in tensors if tensor.device.type != DEVICE_NAME}
        self.placements = _C.argument_placements(self.tensors)
        views = [(p, t.dtype, t.size(), t.stride()) for p, t in zip(self.placements, self.tensors, strict=True)]
        self.first = [views.index(view) for view in views]  # the first position of the same view
        self.inputs = sorted(set(self.first))
        self.written = [self.position(values[i]) for i in written_arguments(op)]
        takes_numbers = lowered.whole(functional) and lowered.with_numbers(functional) or self._allows_numbers()
        self.numbers_become_tensors = bool(self.numbers) and not takes_numbers and not self.has_wrapped_numbers()

    @property
    def writes_into_out(self) -> bool:
        """Whether the call has ``out=``, which may be resized, unlike a tensor that is changed in place."""
        return bool(self.written) and self.op._schema.arguments[written_arguments(self.op)[0]].kwarg_only

    def apply(self, op: OpOverload, inputs: Sequence[torch.Tensor], as_numbers: bool = True) -> Results:
        """Calls ``op`` with ``inputs`` in place of tensors on the card, and numbers in place of those on the host."""
        args, kwargs = self.arguments(op, inputs, as_numbers)
        resolve = as_numbers and self.needs_other_overload() and not self.numbers_become_tensors
        function: Any = op.overloadpacket if resolve else op
        results = function(*args, **kwargs)
        return list(results) if isinstance(results, (list, tuple)) else [results]

    def arguments(
        self, op: OpOverload, inputs: Sequence[Any], as_numbers: bool = True, scalars: Mapping[int, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of ``op``, with ``inputs`` (tensors or nodes of a graph) in place of the tensors on the card.

        Tensors on the host become numbers, or tensors without dimensions. ``scalars`` replace numbers of the call, by
        position.
        """

        def replaced(value: Any) -> Any:
            if isinstance(value, list):
                return [replaced(each) for each in value]
            if isinstance(value, torch.device) and inputs and isinstance(inputs[0], torch.Tensor):
                return inputs[0].device
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in self.numbers:
                return self.input(inputs, self.position(value))
            if self.numbers_become_tensors:
                return _scalar_tensor(inputs[0], self.numbers[id(value)], value.dtype)
            return self.numbers[id(value)] if as_numbers else torch.empty((), dtype=value.dtype, device="meta")

        given = {each.name: replaced(v) for each, v in zip(self.op._schema.arguments, self.values, strict=True)}
        if self.op in _FACTORIES:
            given |= {"dtype": given["out"].dtype, "device": inputs[0].device, "layout": None, "pin_memory": None}
        for position, scalar in (scalars or {}).items():
            value = self.values[position]
            if self.numbers_become_tensors and isinstance(value, torch.Tensor):
                scalar = _scalar_tensor(inputs[0], scalar, value.dtype)
            given[self.op._schema.arguments[position].name] = scalar
        wanted = op._schema.arguments
        return (
            tuple(given[each.name] for each in wanted if not each.kwarg_only),
            {each.name: given[each.name] for each in wanted if each.kwarg_only},
        )

    def position(self, tensor: torch.Tensor) -> int:
        return next(i for i, each in enumerate(self.tensors) if each is tensor)

    def input(self, inputs: Sequence[Any], position: int) -> Any:
        """Which of ``inputs`` is in place of the tensor at this position."""
        return inputs[self.inputs.index(self.first[position])]

    def is_lowered_whole(self) -> bool:
        """Whether the call needs no tracing: its op has a lowering, also with the numbers of the call."""
        as_tensors = self.numbers_become_tensors or not self.needs_other_overload()
        return lowered.whole(self.functional) and (as_tensors or lowered.with_numbers(self.functional))

    def needs_other_overload(self) -> bool:
        """Whether numbers are in place of tensors, which another overload of the op takes."""
        return not self._allows_numbers() and any(
            isinstance(value, int | float) or id(value) in self.numbers for value in self.tensor_arguments()
        )

    def has_wrapped_numbers(self) -> bool:
        """Whether Python numbers are in place of tensors, which the overload does not take."""
        return not self._allows_numbers() and any(isinstance(value, int | float) for value in self.tensor_arguments())

    def _allows_numbers(self) -> bool:
        """Whether the overload for tensors takes numbers as well; few do."""
        return torch._C._should_allow_numbers_as_tensors(self.functional._opname)

    def tensor_arguments(self) -> list[Any]:
        """The arguments that are tensors by the op's schema, without outputs."""
        schema = self.op._schema.arguments
        return [
            v for each, v in zip(schema, self.values, strict=True) if str(each.type) == "Tensor" and not each.is_out
        ]


def _scalar_tensor(like: Any, number: Any, dtype: torch.dtype) -> Any:
    """A number as a tensor without dimensions: in the graph of the node ``like``, or on the device of that tensor."""
    if dtype == torch.float64 and (isinstance(like, fx.Node) or like.device.type != "meta"):
        dtype = torch.float32  # what type promotion with a tensor of the card makes of it
    if not isinstance(like, fx.Node):
        return torch.scalar_tensor(number, dtype=dtype, device=like.device)
    made = like.graph.call_function(aten.scalar_tensor.default, (number,), {"dtype": dtype})
    made.meta["val"] = torch.empty((), dtype=dtype, device="meta")
    return made


def empty_like(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)


def dtypes_of(tensors: Sequence[torch.Tensor | None]) -> list[torch.dtype | None]:
    return [None if tensor is None else tensor.dtype for tensor in tensors]
