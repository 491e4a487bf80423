"""Sizes that change between calls: a program is traced once, and compiled for each size that occurs.

The card runs loops of fixed length. If a symbolic size were fixed while a graph is compiled, Dynamo would guard on it
and trace the program again for every other size. So a graph with symbolic inputs stays symbolic, and AOTAutograd gets
a :class:`DynamicCode`: it compiles a copy of the graph, with numbers for symbols, when inputs of a new size arrive.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.utils import counters, get_metrics_context
from torch._guards import CompileContext, TracingContext, compile_context, tracing
from torch._inductor.output_code import OutputCode
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from ...compile_time import compiling
from ...logging import get_logger
from .. import config

log = get_logger(__name__)

Code = Callable[[list[Any]], Any]
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic(value: Any) -> bool:
    """Whether a traced value is a symbol, or a tensor whose size, strides or offset are symbols."""
    if not isinstance(value, torch.Tensor):
        return isinstance(value, _SYMBOLS)
    return any(isinstance(n, _SYMBOLS) for n in (*value.shape, *value.stride(), value.storage_offset()))


class DynamicCode(OutputCode):
    """Runs a graph with symbolic inputs. Code is compiled for the sizes of a call; the most recently used is kept.

    ``compile_static(graph, inputs)`` compiles a graph without symbols. The symbolic graph is not changed.
    """

    def __init__(
        self, gm: fx.GraphModule, inputs: Sequence[Any], is_backward: bool, compile_static: Callable[..., Code]
    ) -> None:
        super().__init__()
        self._boxed_call = True  # AOTAutograd then passes the inputs as one list; it reads this from the object
        self._gm, self._compile = gm, compile_static
        self._context = CompileContext.try_get()
        self._codes: OrderedDict[tuple[Any, ...], Code] = OrderedDict()
        self._lock = threading.Lock()
        # Only as_strided counts from the start of a storage; other code does not depend on storage offsets.
        uses_offsets = any("as_strided" in str(node.target) for node in gm.graph.nodes)
        self._offsets: set[int] = set()  # inputs whose storage offset is symbolic and used
        self._numbers: list[int] = []  # inputs that are numbers and used
        self._tensors: list[int] = []  # inputs whose sizes or strides are symbolic
        self._inputs = list(inputs)
        for i, (node, value) in enumerate(zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True)):
            if isinstance(value, _SYMBOLS) and node.users:
                self._numbers.append(i)
            # Forward code chooses the strides of the tensors that it saves for backward code anew for each size.
            elif isinstance(value, torch.Tensor) and (is_backward or is_symbolic(value)):
                self._tensors.append(i)
                if uses_offsets and isinstance(value.storage_offset(), torch.SymInt):
                    self._offsets.add(i)

    def __call__(self, inputs: Sequence[Any]) -> Any:
        key = self._key(inputs)
        with self._lock:
            code = self._codes.get(key)
            if code is not None:
                self._codes.move_to_end(key)
        return (code or self._specialize(key, inputs))(inputs)  # type: ignore[arg-type]

    def _key(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        key: list[Any] = [inputs[i] for i in self._numbers]
        for i in self._tensors:
            tensor = inputs[i]
            key += (tensor.shape, tensor.stride())
            if i in self._offsets:
                key.append(tensor.storage_offset())
        return tuple(key)

    def _specialize(self, key: tuple[Any, ...], inputs: Sequence[Any]) -> Code:
        with _compiling(self._context) as mode:
            with self._lock:
                if key in self._codes:  # another thread compiled it meanwhile
                    return self._codes[key]
            sizes = ", ".join(_short(inputs[i]) for i in sorted((*self._numbers, *self._tensors)))
            log.info("specialised for %s", sizes)
            counters["spyre"]["specializations"] += 1
            try:
                fakes = self._fakes(inputs, mode)
                code = self._compile(at_sizes(self._gm, fakes, mode), fakes)
            except Exception as error:
                raise RuntimeError(
                    f"a program with dynamic sizes could not be compiled for {sizes}: {type(error).__name__}: {error}"
                ) from error
            with self._lock:
                self._codes[key] = code
                while len(self._codes) > max(config.specializations_kept, 1):
                    self._codes.popitem(last=False)
            return code

    def _fakes(self, inputs: Sequence[Any], mode: FakeTensorMode) -> list[Any]:
        """The inputs as fake tensors: symbolic parts as they are in this call, the rest as it was traced."""
        fakes = []
        for i, (given, traced) in enumerate(zip(inputs, self._inputs, strict=True)):
            if not isinstance(traced, torch.Tensor):
                # All values of an unused number share one specialisation.
                fakes.append(0 if isinstance(traced, _SYMBOLS) and i not in self._numbers else given)
                continue
            size, stride = (given.shape, given.stride()) if i in self._tensors else (traced.shape, traced.stride())
            offset = given.storage_offset() if i in self._offsets else traced.storage_offset()
            fakes.append(_fake(given, size, stride, 0 if isinstance(offset, torch.SymInt) else offset, mode))
        return fakes


def _short(value: Any) -> str:
    return (
        f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, torch.Tensor)
        else str(value)
    )


def _fake(
    given: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int, mode: FakeTensorMode
) -> torch.Tensor:
    with mode:
        fake = torch.empty_strided(size, stride, dtype=given.dtype, device=given.device)
        if offset:
            reach = offset + fake.untyped_storage().nbytes() // fake.element_size()
            fake = torch.empty(reach, dtype=given.dtype, device=given.device).as_strided(size, stride, offset)
        fake = fake.conj() if given.is_conj() else fake
        return torch._neg_view(fake) if given.is_neg() else fake


@contextmanager
def _compiling(context: CompileContext | None) -> Iterator[FakeTensorMode]:
    """The context in which PyTorch calls a compiler, while the program is running. One thread compiles at a time."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    before = torch._C._dynamo.eval_frame.set_eval_frame(None)  # Dynamo must not trace the compiler
    try:
        with (
            compiling(),
            compile_lock,
            torch.no_grad(),
            torch._C._DisableAutocast(),
            tracing(TracingContext(mode)),
            compile_context(context),
            get_metrics_context(),
        ):
            yield mode
    finally:
        torch._C._dynamo.eval_frame.set_eval_frame(before)


def at_sizes(gm: fx.GraphModule, inputs: Sequence[Any], mode: FakeTensorMode) -> fx.GraphModule:
    """A copy of a graph for these inputs (fake tensors of ``mode``, and numbers), without symbols."""
    static = _copied(gm)
    numbers: dict[sympy.Expr, Any] = {}
    for node, given in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
        _bind(node.meta.get("val"), given, numbers)
    for node in static.graph.nodes:
        node.args, node.kwargs = _plain((node.args, node.kwargs), numbers, mode)
    with enable_python_dispatcher():
        FakeTensorProp(static, mode).propagate_dont_convert_inputs(*inputs)
    for traced, node in zip(gm.graph.nodes, static.graph.nodes, strict=True):
        _bind(traced.meta.get("val"), node.meta.get("val"), numbers)
    _fold_numbers(static.graph)
    _replace_branches(static, numbers, mode)
    return static


def _copied(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph that shares its constants."""
    static = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    static.meta = copy.copy(gm.meta)
    for node in static.graph.nodes:
        node.meta.pop("unbacked_bindings", None)  # sizes that depend on values get new symbols in the copy
    return static


def _bind(traced: Any, found: Any, numbers: dict[sympy.Expr, Any]) -> None:
    """Notes the number of each symbol of a traced value."""
    if isinstance(traced, _SYMBOLS) and not isinstance(found, _SYMBOLS):
        numbers[traced.node.expr] = sympy.sympify(found)
    elif isinstance(traced, torch.Tensor):
        _bind((*traced.shape, *traced.stride()), (*found.shape, *found.stride()), numbers)
    elif isinstance(traced, list | tuple):
        for one, other in zip(traced, found, strict=True):
            _bind(one, other, numbers)


def _plain(values: Any, numbers: dict[sympy.Expr, Any], mode: FakeTensorMode) -> Any:
    """Values, or arguments of a node, with numbers for symbols."""

    def number(value: Any) -> Any:
        if not isinstance(value, _SYMBOLS):
            return value
        found = value.node.expr.xreplace(numbers)
        if found.free_symbols:
            raise RuntimeError(f"the symbol {value} does not follow from the sizes of the inputs")
        return int(found) if isinstance(value, torch.SymInt) else bool(found)

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and is_symbolic(value):
            return _fake(value, [number(n) for n in value.shape], [number(n) for n in value.stride()], 0, mode)
        return number(value)

    return fx.node.map_aggregate(values, plain)


def _fold_numbers(graph: fx.Graph) -> None:
    """Replaces nodes whose value is a number by that number in the arguments of their users."""

    def folded(node: fx.Node) -> Any:
        value = node.meta.get("val")
        return value if isinstance(value, int | float) else node

    for node in reversed(graph.nodes):
        node.args, node.kwargs = fx.map_arg((node.args, node.kwargs), folded)
        if node.op == "call_function" and isinstance(node.meta.get("val"), int | float):
            graph.erase_node(node)


def _replace_branches(gm: fx.GraphModule, numbers: dict[sympy.Expr, Any], mode: FakeTensorMode) -> None:
    """Replaces the symbols of nested graphs (branches and loop bodies) by numbers."""
    for name, module in gm.named_children():
        if isinstance(module, fx.GraphModule):
            branch = _copied(module)
            for node in branch.graph.nodes:
                node.meta["val"] = _plain(node.meta.get("val"), numbers, mode)
                node.args, node.kwargs = _plain((node.args, node.kwargs), numbers, mode)
            _fold_numbers(branch.graph)
            _replace_branches(branch, numbers, mode)
            setattr(gm, name, branch)
    gm.recompile()
