"""What a program should give: it runs on the CPU, with values in float64 and their bounds at its side."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.fuzz import inputs
from tests.fuzz.bounds import Call, Invalid, Ref, check_limits, converted, kept, rounded
from tests.fuzz.ops import OPS, Op
from tests.fuzz.program import Input, Program, Step
from torch_spyre._inductor import spyre_hint

GLOBALS: dict[str, Any] = {
    "torch": torch,
    "F": F,
    "numbers": inputs.numbers,
    "placed": inputs.placed,
    "spyre_hint": spyre_hint,
}
MOST = 1 << 16  # elements of a tensor


class Reference:
    """Tensors by name: as the CPU has them, and as they should be."""

    def __init__(self) -> None:
        self.native: dict[str, Tensor] = {}
        self.refs: dict[str, Ref] = {}

    def add_input(self, given: Input) -> None:
        self._execute(given.code())
        tensor = self.native[given.name]
        whole = tensor.new_empty(0).set_(tensor.untyped_storage())
        value, error = rounded(kept(whole, tensor.dtype), torch.zeros(whole.shape, dtype=torch.float64), tensor.dtype)
        place = tensor.size(), tensor.stride(), tensor.storage_offset()
        self.refs[given.name] = Ref(value.as_strided(*place), error.as_strided(*place), tensor.dtype)

    def add_step(self, step: Step) -> None:
        op = OPS[step.op]
        if any(name not in self.refs for name in step.operands):
            raise Invalid("an operand is missing")
        if op.target is None:
            self._make(op, step)
        else:
            self._write(op, step)

    def _execute(self, code: str) -> None:
        """The line itself on CPU tensors; what PyTorch refuses is no program."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(code, {**GLOBALS, "device": "cpu"}, self.native)
        except Exception as error:
            raise Invalid(f"{type(error).__name__}: {error}") from error

    def _make(self, op: Op, step: Step) -> None:
        self._execute(step.code())
        native = self.native[step.name]
        if native.numel() > MOST:
            raise Invalid("too large a tensor")
        refs = tuple(self.refs[name] for name in step.operands)
        value, error = _follow(op, Call(op.code, refs, step.parameters, native.dtype))
        check_limits(value, error, native.dtype)
        alias = next((n for n in step.operands if _shares(native, self.native[n])), None)
        if alias is not None and native.numel():
            # The same view of the values of what it is a view of.
            place = native.size(), native.stride(), native.storage_offset()
            base = self.refs[alias]
            self.refs[step.name] = Ref(base.value.as_strided(*place), base.error.as_strided(*place), native.dtype)
        else:
            self.refs[step.name] = Ref(_like(native, value), _like(native, error), native.dtype)

    def _write(self, op: Op, step: Step) -> None:
        assert op.target is not None
        name = step.operands[op.target]
        target, native = self.refs[name], self.native[name]
        others = [self.native[each] for i, each in enumerate(step.operands) if i != op.target]
        if _overlaps_itself(native) or any(_conflict(native, each, op.pointwise) for each in others):
            raise Invalid("written and read at once")
        # Of in-place ops the target is an operand as well, of out= it is not.
        refs = tuple(self.refs[each] for each in (step.operands[: op.target] if op.target else step.operands))
        # Computed in the dtype that the operands give, then converted to the target's.
        dtype = self._result_dtype(op, step)
        value, error = _follow(op, Call(op.pure, refs, step.parameters, dtype))
        if value.shape != target.shape:
            raise Invalid("another shape")
        written = converted(Ref(value, error, dtype), native.dtype)
        check_limits(written.value, written.error, native.dtype)
        place = native.size(), native.stride(), native.storage_offset()
        self._execute(step.code())
        if (native.size(), native.stride(), native.storage_offset()) != place:
            raise Invalid("resized")
        target.value.copy_(written.value)
        target.error.copy_(written.error)
        self.refs[step.name] = target
        self.native[step.name] = native

    def _result_dtype(self, op: Op, step: Step) -> torch.dtype:
        try:
            return Call(op.pure, (), step.parameters, torch.bool).apply(*(self.native[n] for n in step.operands)).dtype
        except (RuntimeError, IndexError, ValueError, TypeError) as refusal:
            raise Invalid(f"{type(refusal).__name__}: {refusal}") from refusal


def _follow(op: Op, call: Call) -> tuple[Tensor, Tensor]:
    try:
        value, error = op.rule(call)
    except (RuntimeError, IndexError, ValueError, TypeError) as refusal:
        raise Invalid(f"{type(refusal).__name__}: {refusal}") from refusal
    return value, error.expand(value.shape)


def _like(native: Tensor, values: Tensor) -> Tensor:
    if values.shape != native.shape:
        raise AssertionError(f"a rule gives {tuple(values.shape)}, PyTorch {tuple(native.shape)}")
    return torch.empty_strided(native.size(), native.stride(), dtype=values.dtype).copy_(values)


def _shares(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and a.numel() > 0 and b.numel() > 0


def _places(tensor: Tensor) -> Tensor:
    """Where in its storage each element lies."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.arange(count).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).flatten()


def _overlaps_itself(tensor: Tensor) -> bool:
    places = _places(tensor)
    return len(places.unique()) < len(places)


def _conflict(target: Tensor, other: Tensor, pointwise: bool) -> bool:
    if not _shares(target, other):
        return False
    same = (target.size(), target.stride(), target.storage_offset()) == (
        other.size(),
        other.stride(),
        other.storage_offset(),
    )
    return not (pointwise and same) and bool(torch.isin(_places(target), _places(other)).any())


def run(program: Program) -> Reference:
    """The program's tensors as they are at its end."""
    reference = Reference()
    for given in program.inputs:
        reference.add_input(given)
    for step in program.steps:
        reference.add_step(step)
    missing = [name for name in program.outputs if name not in reference.refs]
    if missing:
        raise Invalid(f"no {missing[0]}")
    return reference
