"""Ops as they run on the card, each compared with the host.

Every op starts on the host from the numbers that the card had, so that an error belongs to the op that made it. The
same op also runs on the :class:`Reference`, where errors of the card never enter.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from ..constants import DEVICE_NAME
from ..ops.fallbacks import fallback_counts
from . import parts
from .judge import (
    EXACT,
    NO_VALUES,
    Call,
    Expected,
    Judgement,
    dropout,
    expect,
    expect_dropout,
    expect_in_dtype,
    host_call,
    judge,
    map_call,
    results_of,
    written,
)
from .reference import Reference, run
from .report import Report, Row
from .source import Line, calling_line, from_trace, in_generated_code
from .values import as_computed, held, is_real, on_card, widened

aten = torch.ops.aten

# Ops that the device writes with others: those are compared.
_WRITTEN_OUT = {
    *(aten._transformer_encoder_layer_fwd, aten._thnn_fused_lstm_cell, aten._thnn_fused_gru_cell),
    *(aten.cross_entropy_loss, aten.batch_norm, aten.one_hot),
}


class Observer:
    """Compares ops, and keeps what it found."""

    def __init__(self) -> None:
        self.report = Report()
        self.reference = Reference()
        self.eager_traces: dict[str, list[str]] = {}  # of ops that compiled code runs eagerly, by name

    def line(self, op: OpOverload, until: CodeType) -> Line:
        """The line of an op that runs now, below ``until``."""
        traces = self.eager_traces.get(op._schema.name)
        if not traces or not in_generated_code(until):
            return calling_line(until)
        traces.append(traces.pop(0))  # compiled code has them in this order, as often as it is called
        return from_trace(traces[-1], torch._C._current_autograd_node() is not None)

    def observe(self, op: OpOverload, call: Call, execute: Callable[[], Any], line: Line, where: str = "card") -> Any:
        """What ``execute`` returns, which is the op on the card."""
        random = torch.Tag.nondeterministic_seeded in op.tags
        host = _Host(op, call, random)
        beside = map_call(self.reference.argument, _for_host(op, call))
        fallbacks = sum(fallback_counts().values())
        returned = execute()
        fell_back = sum(fallback_counts().values()) > fallbacks
        results = results_of(op, call, returned)
        tensors = [each for each in results if isinstance(each, Tensor)]
        if tensors:
            judgement = host.judge(results, fell_back)
            first = next(iter(filter(is_real, tensors)), tensors[0])
            dtype = str(first.dtype).removeprefix("torch.")
            place = "cpu" if fell_back else where
            self.report.rows.append(Row(line, _name(op), dtype, tuple(first.shape), place, judgement))
        self._follow(op, call, beside, returned, random)
        return returned

    def _follow(self, op: OpOverload, call: Call, beside: Call, returned: Any, random: bool) -> None:
        """Does on the reference what the card did."""
        changed = written(op, *call)
        fresh = [leaf for leaf in tree_leaves(returned) if on_card(leaf) and not any(leaf is each for each in changed)]
        if random:
            for tensor in (*changed, *fresh):
                self.reference.adopt(tensor)
            if op.overloadpacket is aten.native_dropout and len(fresh) == 2:
                self.reference.put(fresh[0], dropout(beside, held(fresh[1])))
            return
        given = run(lambda: op(*beside[0], **beside[1]))
        theirs = written(op, *beside)
        found = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
        found = [leaf for leaf in found if not any(leaf is each for each in theirs)]
        if given is None and op._schema.returns or len(found) != len(fresh):
            for tensor in (*changed, *fresh):
                self.reference.adopt(tensor)
            return
        for tensor, value in zip(fresh, found, strict=True):
            self.reference.put(tensor, value)


class _Host:
    """The op on the host, from what its arguments held before the card ran it."""

    def __init__(self, op: OpOverload, call: Call, random: bool) -> None:
        self.op, self.call, self.random = op, call, random
        beside_tensors = any(isinstance(leaf, Tensor) for leaf in tree_leaves(call))
        self.wide = map_call(as_computed if beside_tensors else widened, _for_host(op, call))
        self.given = host_call(call) if random or _mutates(op) else None  # else they can be read later
        if random:
            self.state = torch.spyre.get_rng_state(_device(call))  # type: ignore[attr-defined]

    def judge(self, results: list[Any], fell_back: bool) -> Judgement:
        found = [held(each) if isinstance(each, Tensor) else each for each in results]
        dtypes = [each.dtype if isinstance(each, Tensor) else None for each in results]
        try:
            expected = self._in_dtype() if self.random else self._expected(dtypes)
            judged = self._judged(found, dtypes, expected)
            if judged.is_finding and fell_back and not self.random:
                again = self._judged(found, dtypes, self._in_dtype())
                judged = judged if again.is_finding else again
            return judged
        except Exception as error:  # an op that the host does not have in this form, of any library
            text = str(error).strip().partition("\n")[0]
            return Judgement("unchecked", note=f"the host cannot compute it: {type(error).__name__}: {text}"[:200])

    def _judged(self, found: list[Any], dtypes: list[Any], expected: Expected) -> Judgement:
        return judge(self.op, self.wide, found, dtypes, expected, self._converts(dtypes))

    def _expected(self, dtypes: list[Any]) -> Expected:
        real = next((dtype for dtype in dtypes if dtype is not None and dtype.is_floating_point), torch.float32)
        copy = map_call(lambda x: x.clone() if isinstance(x, Tensor) else x, self.wide)
        return expect(self.op, copy, real)

    def _in_dtype(self) -> Expected:
        call = self.given if self.given is not None else host_call(self.call)
        if not self.random:
            return expect_in_dtype(self.op, call)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.state)
            if self.op.overloadpacket is aten.native_dropout:
                return expect_dropout(call, self.wide)
            return expect_in_dtype(self.op, call)

    def _converts(self, dtypes: list[Any]) -> bool:
        """Whether numbers that are only moved round, since they come from another format."""
        if self.op.overloadpacket not in parts.MOVES and self.op.overloadpacket not in EXACT:
            return False
        tensors = [leaf for leaf in tree_leaves(self.call) if is_real(leaf)]
        return any(tensor.dtype not in dtypes or not on_card(tensor) for tensor in tensors)


def _device(call: Call) -> torch.device:
    leaves = tree_leaves(call)
    devices = [x.device if isinstance(x, Tensor) else x for x in leaves if isinstance(x, Tensor | torch.device)]
    return next((each for each in devices if each.type == DEVICE_NAME), torch.device(DEVICE_NAME))


def _mutates(op: OpOverload) -> bool:
    return op._schema.is_mutable


def _for_host(op: OpOverload, call: Call) -> Call:
    """The host's softmax does not widen halves, which there are none of."""
    args, kwargs = call
    if op.overloadpacket in (aten._softmax, aten._log_softmax):
        return (*args[:2], False), {}
    return call


def _name(op: OpOverload) -> str:
    overload = "" if op._overloadname == "default" else f".{op._overloadname}"
    return op._schema.name.replace("::", ".") + overload


class ObserveOps(TorchDispatchMode):
    """Inside, every op that touches the card is compared."""

    supports_higher_order_operators = True

    def __init__(self, observer: Observer, until: CodeType) -> None:
        """``until`` is the code that calls the program."""
        super().__init__()
        self.observer, self.until = observer, until

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # torch.compile goes on compiling

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload) or not _touches_card(args, kwargs):
            return func(*args, **kwargs)
        if any(_is_special(leaf) for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        if func.overloadpacket in NO_VALUES or func.is_view and not _mutates(func):
            return func(*args, **kwargs)
        inner = self._taken_apart(func, args, kwargs)
        if inner is not NotImplemented:
            return inner
        with _disable_current_modes():
            line = self.observer.line(func, self.until)
            return self.observer.observe(func, (args, kwargs), lambda: func(*args, **kwargs), line)

    def _taken_apart(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Ops that are written with others on every device: those are compared."""
        name = func.name()
        native = torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1")
        if native and func.overloadpacket not in _WRITTEN_OUT:
            return NotImplemented
        with self:
            if native:
                return func._op_dk(DispatchKey.PrivateUse1, *args, **kwargs)
            if name.startswith("aten::_foreach_") or _is_composite(func):
                return func._op_dk(DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
            return func.decompose(*args, **kwargs)


def _is_composite(op: OpOverload) -> bool:
    """Whether an op of another library is written with others, the same for all devices."""
    key = "CompositeExplicitAutograd"
    return op.namespace not in ("aten", "prims") and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def _touches_card(args: Any, kwargs: Any) -> bool:
    return any(
        (isinstance(leaf, Tensor) and leaf.device.type == DEVICE_NAME)
        or (isinstance(leaf, torch.device) and leaf.type == DEVICE_NAME)
        for leaf in tree_leaves((args, kwargs))
    )


def _is_special(leaf: Any) -> bool:
    """A tensor without values of its own, or whose values are those of others."""
    return isinstance(leaf, Tensor) and (
        type(leaf) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer)
        or leaf.layout != torch.strided
        or leaf.is_nested
    )
