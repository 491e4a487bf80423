"""``torch.ops.spyre.paged_attention``, called eagerly: a kernel of one op, which gets numbers from the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from .._inductor.fx.lower import lower_graph
from .._inductor.loop_ir.canonical import canonical
from ..execution.kernel import SpyreKernel
from ..ops.paged_attention import NAME, check

_op = torch.ops.spyre.paged_attention.default
_kernels: dict[object, SpyreKernel] = {}
MOST_KERNELS = 256


def paged_attention(*args: Any, **kwargs: Any) -> Tensor:
    """The op on the card. One kernel serves all numbers that its tensors of these sizes may come with."""
    given = dict(zip((each.name for each in _op._schema.arguments), args, strict=False)) | kwargs
    query, values, starts, lengths = (given[name] for name in ("query", "value_cache", "query_starts", "lengths"))
    names = ("query", "key_cache", "value_cache", "block_table", "query_starts", "lengths", "sinks", "alibi_slopes")
    check(*(given.get(name) for name in names))  # type: ignore[arg-type]
    if not query.numel() or not values.numel() or not given["block_table"].numel():
        return query.new_zeros((*query.shape[:2], values.size(-1)))
    key = tuple(_described(value) for value in (*args, *sorted(kwargs.items())))
    kernel = _kernels.get(key)
    if kernel is None:
        while len(_kernels) >= MOST_KERNELS:
            del _kernels[next(iter(_kernels))]
        kernel = _kernels[key] = _kernel(
            args, kwargs, query.new_empty((*query.shape[:2], values.size(-1)), device="meta")
        )
    inputs = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor) and each.device.type != "cpu"]
    return kernel(*inputs, starts, lengths)[0]


def _described(value: Any) -> object:
    if isinstance(value, tuple):
        return tuple(map(_described, value))
    if not isinstance(value, Tensor):
        return value
    return value.dtype, value.device, value.size(), () if value.device.type == "cpu" else value.stride()


def _kernel(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> SpyreKernel:
    graph = fx.Graph()

    def node(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        made = graph.placeholder(f"arg{len(graph.nodes)}")
        host = value.device.type == "cpu"
        made.meta["val"] = (
            value if host else torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        )
        return made

    given = [node(value) for value in args], {name: node(value) for name, value in kwargs.items()}
    call = graph.call_function(_op, tuple(given[0]), given[1])
    call.meta["val"] = result
    graph.output([call])
    kernel = lower_graph(graph, NAME)
    for each in kernel.ops:
        each.aten = str(_op)
    return SpyreKernel(canonical(kernel).to_json())
