"""The program called again with a cause removed, on the same clock.

Every trial calls the program, twice: once to compile, once to be timed. What it prints is dropped. One that cannot be
called that way is not timed, and nothing is promised.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

from .. import _C
from .watch import noticing, watching

CALLS = 2


@dataclass(frozen=True)
class Program:
    """What is explained: a function or module with its arguments, compiled or not."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_compiled: bool

    def tensors(self) -> list[torch.Tensor]:
        """Its tensor arguments."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)]

    def given(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its arguments with these tensors in place of its own."""
        left = iter(tensors)
        args, kwargs = tree_map(
            lambda leaf: next(left) if isinstance(leaf, torch.Tensor) else leaf, (self.args, self.kwargs)
        )
        return args, kwargs


@dataclass(frozen=True)
class Dynamic:
    """The calls of a program with dynamic shapes from the start."""

    us: float
    compiles: int
    host_s: float


def as_one_graph(program: Program) -> float | None:
    """Microseconds without graph breaks: its ATen ops, traced through whatever Dynamo stops at, compiled together."""
    tensors = program.tensors()

    def flat(*tensors: torch.Tensor) -> Any:
        args, kwargs = program.given(tensors)
        return program.function(*args, **kwargs)

    with _dropped():
        try:
            with torch.compiler.set_stance("force_eager"), _without_backward():
                graph = make_fx(flat, tracing_mode="real")(*tensors)
        except Exception:
            return None
    # What nothing uses was for an effect outside of the graph: without it this is another program.
    if any(not node.users and _has_value(node) for node in graph.graph.nodes):
        return None
    compiled = torch.compile(graph, fullgraph=True)
    return _timed(lambda: compiled(*tensors))


@contextlib.contextmanager
def _without_backward() -> Iterator[None]:
    """Inside, a backward pass raises: Dynamo leaves those out of its graphs, with or without a break."""
    engine = torch.autograd._engine_run_backward

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a backward pass is no part of a graph")

    torch.autograd._engine_run_backward = refused
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = engine


def _has_value(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and not (
        isinstance(node.target, torch._ops.OpOverload) and (node.target._schema.is_mutable or node.target.is_view)
    )


def compiled(program: Program) -> float | None:
    """Microseconds of the program through ``torch.compile``."""
    together = torch.compile(program.function)
    return _timed(lambda: together(*program.args, **program.kwargs))


def with_dynamic_shapes(program: Program) -> Dynamic | None:
    """All calls with sizes as symbols from the first compile on."""
    torch._dynamo.reset()
    called = torch.compile(program.function) if program.is_compiled else program.function
    with noticing() as notices, torch._dynamo.config.patch(assume_static_by_default=False):
        us = _timed(lambda: called(*program.args, **program.kwargs))
    return None if us is None else Dynamic(us, notices.compiles, notices.host_s)


def with_size(program: Program, size: int, other: int) -> float | None:
    """Microseconds with another number of elements wherever an argument or parameter has this many along a dimension.

    Only for tensors that can be laid out again like that: contiguous ones, with all of a dimension along their sticks.
    """
    tensors = program.tensors()
    module = program.function if isinstance(program.function, torch.nn.Module) else None
    state = {} if module is None else dict([*module.named_parameters(), *module.named_buffers()])
    orders = {id(each): _order_of(each) for each in (*tensors, *state.values()) if size in each.shape}
    if any(order is None for order in orders.values()):
        return None

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        order = orders.get(id(tensor))
        if order is None:
            return tensor
        made = torch.zeros([other if n == size else n for n in tensor.shape], dtype=tensor.dtype)
        if tensor.device.type == "spyre":
            layout = _C.SpyreTensorLayout(list(made.shape), list(made.stride()), made.dtype, order)
            made = made.to(tensor.device, device_layout=layout)  # type: ignore[call-overload]
        return made.requires_grad_(tensor.requires_grad)

    args, kwargs = program.given([resized(each) for each in tensors])
    changed = {name: resized(each) for name, each in state.items()}

    def flat(*args: Any, **kwargs: Any) -> Any:
        if module is None:
            return program.function(*args, **kwargs)
        return torch.func.functional_call(module, changed, args, kwargs)  # weights go with the sizes of arguments

    called = torch.compile(flat) if program.is_compiled else flat
    return _timed(lambda: called(*args, **kwargs))


def _order_of(tensor: torch.Tensor) -> list[int] | None:
    """The order of its dimensions on the card, the one along its sticks last; None if it lies in another way."""
    everything = list(range(tensor.dim()))
    if not tensor.is_contiguous():
        return None
    if tensor.device.type != "spyre":
        return everything
    layout = _C.get_spyre_tensor_layout(tensor)
    for stick in reversed(everything):
        order = [dim for dim in everything if dim != stick] + [stick]
        if _C.SpyreTensorLayout(list(tensor.shape), list(tensor.stride()), tensor.dtype, order) == layout:
            return order
    return None


def _timed(call: Callable[[], Any]) -> float | None:
    with _dropped():
        try:
            for _ in range(CALLS):
                with watching() as watched:
                    call()
        except Exception:
            return None
    return watched.us


@contextlib.contextmanager
def _dropped() -> Iterator[None]:
    """Drops what the program says: it has said it before."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield
