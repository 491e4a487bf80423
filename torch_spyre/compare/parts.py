"""How far a composed op may be off: PyTorch takes it apart on the host, and the bounds of its parts add up.

Each part is computed in float64 and rounds once. What its inputs may be off reaches its result as far as moving each of
them by that much, up and down, moves the result; of a product of matrices, by the product of the absolute values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import global_decomposition_table
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .error_bounds import Format, accumulation, fits_bits

aten = torch.ops.aten


Apart = dict[Any, Callable[..., Any]]


def bounded(function: Callable[[], Any], format: Format) -> tuple[list[Any], list[Any]]:
    """The results of ``function``, and how far each may be off.

    An infinite number, a mask for example, is exact unless errors of operands make it so; nothing is said behind a
    finite one that the format cannot hold.
    """
    with _Parts(format) as parts:
        results = tree_leaves(function())
    return results, [parts.error(x) if _real(x) else None for x in results]


def _largest_window(x: Tensor, y: Tensor, dims: int) -> int:
    """Windows that share the input evenly begin and end within an element of their part."""
    sizes = zip(x.shape[-dims:], y.shape[-dims:], strict=True)
    return math.prod(-(-size // max(count, 1)) + 1 for size, count in sizes)


# How many numbers the parts that sum in fp32 add up, of their inputs and their result.
TERMS: dict[Any, Callable[[Sequence[Any], Tensor], int]] = {
    aten.sum: lambda args, y: args[0].numel() // max(y.numel(), 1),
    aten.mean: lambda args, y: args[0].numel() // max(y.numel(), 1),
    aten.cumsum: lambda args, y: args[0].shape[args[1]] if y.dim() else 1,
    aten.mm: lambda args, y: args[0].shape[-1],
    aten.bmm: lambda args, y: args[0].shape[-1],
    aten.mv: lambda args, y: args[0].shape[-1],
    aten.dot: lambda args, y: args[0].shape[-1],
    aten.convolution: lambda args, y: args[1][0].numel(),
    aten.index_add: lambda args, y: args[3].numel(),
    aten.scatter_add: lambda args, y: args[3].numel(),
    aten.index_reduce: lambda args, y: args[3].numel() + 1,
    aten.scatter_reduce: lambda args, y: args[3].numel() + 1,
    aten.index_put: lambda args, y: args[2].numel(),
    aten._unsafe_index_put: lambda args, y: args[2].numel(),
    aten.avg_pool2d: lambda args, y: math.prod(args[1]) if len(args[1]) > 1 else args[1][0] ** 2,
    aten.avg_pool3d: lambda args, y: math.prod(args[1]) if len(args[1]) > 1 else args[1][0] ** 3,
    aten._adaptive_avg_pool2d: lambda args, y: _largest_window(args[0], y, 2),
    aten._adaptive_avg_pool3d: lambda args, y: _largest_window(args[0], y, 3),
}
PRODUCTS = {aten.mm, aten.bmm, aten.mv, aten.dot, aten.convolution}

# Parts that move or choose numbers and so round nothing. Views are known by their schemas.
MOVES = {
    *(aten.clone, aten.copy, aten.copy_, aten._to_copy, aten.cat, aten.stack, aten.repeat, aten.flip, aten.roll),
    *(
        aten.constant_pad_nd,
        aten.gather,
        aten.index,
        aten._unsafe_index,
        aten.index_select,
        aten.embedding,
        aten.scatter,
    ),
    *(aten.where, aten.masked_fill, aten.maximum, aten.minimum, aten.amax, aten.amin, aten.max, aten.min, aten.clamp),
    *(aten.clamp_min, aten.clamp_max, aten.abs, aten.neg, aten.relu, aten.sign, aten.sgn),
    *(aten.tril, aten.triu),
    *(aten.slice_scatter, aten.select_scatter, aten.diagonal_copy),
}

# Of those, the overloads that add or multiply what they move.
SUMMING = {aten.scatter.reduce, aten.scatter.value_reduce}

# Parts that put a number into a tensor: it rounds, unless the format has it.
FILLS = {
    aten.fill,
    aten.full,
    aten.full_like,
    aten.zeros,
    aten.ones,
    aten.zeros_like,
    aten.ones_like,
    aten.scalar_tensor,
}

# What the card has as one op, or rounds once at the end of.
WHOLE = {
    *(aten.sum, aten.mean, aten.cumsum, aten.mm, aten.bmm, aten.mv, aten.dot),
    *(aten.exp, aten.log, aten.log1p, aten.expm1, aten.pow, aten.sqrt, aten.rsqrt, aten.erf, aten.softplus),
    *(aten.silu, aten.gelu, aten.mish, aten.elu, aten.leaky_relu, aten.logaddexp, aten.where, aten.clamp, aten.hypot),
    *(
        aten.index_add,
        aten.scatter_add,
        aten.index_put,
        aten._unsafe_index_put,
        aten.gather,
        aten.index,
        aten.embedding,
    ),
    *(aten.index_select, aten.reciprocal, aten.cat, aten.stack, aten.masked_fill, aten.sigmoid, aten.tanh),
}


class _Parts(TorchDispatchMode):
    def __init__(self, format: Format) -> None:
        super().__init__()
        self.format = format
        self.errors: dict[int, tuple[Tensor, Tensor]] = {}  # by id, with the tensor, whose id stays its own then

    def error(self, x: Tensor) -> Tensor:
        known = self.errors.get(id(x))
        return known[1] if known else torch.zeros_like(x)

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if packet not in WHOLE:
            taken_apart = self._take_apart(func, args, kwargs)
            if taken_apart is not NotImplemented:
                return taken_apart
        before = tree_map(lambda x: x.clone() if _real(x) else x, (args, kwargs)) if func._schema.is_mutable else None
        results = func(*args, **kwargs)
        for at, result in enumerate(tree_leaves(results)):
            if _real(result):
                self._note(func, before or (args, kwargs), (args, kwargs), at, result)
        return results

    def _take_apart(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        with self:
            if func.overloadpacket in APART:
                return APART[func.overloadpacket](*args, **kwargs)
            if func in TABLE:
                return TABLE[func](*args, **kwargs)
            return func.decompose(*args, **kwargs)  # NotImplemented where it is one part

    def _note(self, func: OpOverload, call: Any, given: Any, at: int, result: Tensor) -> None:
        """Notes how far result number ``at`` of a part may be off."""
        leaves, form = tree_flatten(call)
        originals = tree_leaves(given)

        def apply(values: list[Any]) -> Tensor:
            copies = [x.clone() if _real(x) else x for x in values] if func._schema.is_mutable else values
            args, kwargs = tree_unflatten(copies, form)
            return tree_leaves(func(*args, **kwargs))[at]

        absolutes = [x.abs() if _real(x) else x for x in leaves]
        error = torch.zeros_like(result)
        for i, original in enumerate(originals):
            moved = self.errors.get(id(original)) if _real(original) else None
            if moved is not None and moved[1].any():
                error = error + self._carried(func, apply, leaves, absolutes, i, moved[1], result)
        packet, carried = func.overloadpacket, error
        if packet in TERMS:
            error = error + accumulation(TERMS[packet](call[0], result), apply(absolutes).abs())
        if packet in FILLS:
            error = error + ~fits_bits(result, self.format.bits) * self.format.entering * result.abs()
        elif (packet not in MOVES or func in SUMMING) and not func.is_view:
            error = error + self.format.unit * result.abs()
        finite = result.isfinite()
        error = torch.where(finite, error, carried)
        too_large = finite & (result.abs() > self.format.largest)
        self.errors[id(result)] = result, error.masked_fill(too_large, math.inf)

    def _carried(
        self,
        func: OpOverload,
        apply: Callable[[list[Any]], Tensor],
        leaves: list[Any],
        absolutes: list[Any],
        i: int,
        error: Tensor,
        result: Tensor,
    ) -> Tensor:
        if func.overloadpacket in PRODUCTS:
            return (apply([*absolutes[:i], absolutes[i] + error, *absolutes[i + 1 :]]) - apply(absolutes)).abs()
        moved = [apply([*leaves[:i], each, *leaves[i + 1 :]]) for each in (leaves[i] + error, leaves[i] - error)]
        up, down = (torch.where(each == result, 0.0, (each - result).abs().nan_to_num(math.inf)) for each in moved)
        return torch.maximum(up, down)


def _real(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    total = alpha * torch.bmm(a, b).sum(0)
    return beta * x + total if beta else total.clone()


def _trilinear(a: Tensor, weight: Tensor, b: Tensor, *dims: Any) -> Tensor:
    """As F.bilinear calls it."""
    return (torch.einsum("ni,kij->nkj", a, weight) * b.unsqueeze(-2)).sum(-1)


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    if bias is None:
        return NotImplemented
    return aten.convolution(x, weight, None, *rest) + bias.view(-1, *[1] * (x.dim() - 2))


def _var_mean(
    x: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Any:
    """With its sums, whose order counts where numbers cancel."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    dims = [dim] if isinstance(dim, int) else list(dim or range(x.dim()))
    mean = x.mean(dims, True)
    off = x - mean
    count = math.prod(x.shape[d] for d in dims) - (int(unbiased) if correction is None else correction)
    var = (off * off).sum(dims, True) * (1 / count if count > 0 else math.nan)
    return (var, mean) if keepdim else (var.squeeze(dims), mean.squeeze(dims))


# What PyTorch does not take apart, or without its sums, and the card does.
APART: Apart = {
    aten.addbmm: _addbmm,
    aten._trilinear: _trilinear,
    aten.convolution: _convolution,
    aten.var_mean: _var_mean,
}
TABLE = global_decomposition_table["post_autograd"]
