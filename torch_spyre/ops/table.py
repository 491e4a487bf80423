"""The op table: what the card does itself, one row per op. Front end, back end, timing and docs read it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from . import paged_attention

T = TypeVar("T")
Kind = Literal[
    "pointwise",
    "reduction",
    "matmul",
    "attention",
    "paged_attention",
    "iota",
    "gather",
    "scatter",
    "scan",
    "argreduce",
    "topk",
]
Unit = Literal["sfp", "pt"]
Cost = Literal["stream", "special", "restickify", "reduction", "matmul", "attention", "indirect", "order"]


# Formats of one byte that the second operand of a matmul may have: the op widens them as it reads.
WIDENED_BY_MATMUL = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class OpRow:
    """One op of the card.

    ``reference`` says what it computes, on CPU tensors. Its arguments: the inputs, then the parameters (pointwise); the
    input and the folded dimensions (reduction, argreduce); the input and the dimension (scan); the input, k and whether
    the largest are meant (topk, along the last dimension); queries, keys, values, a mask or 0, the scale, whether row i
    attends to the keys 0 ... i alone and whether the mask is true or false (attention); sizes, start and step per
    dimension (iota); what ``paged_attention.of_step`` says (paged attention); the table and one index per leading
    dimension (gather), with the values in between (scatter).
    """

    name: str
    kind: Kind
    unit: Unit
    arity: int  # inputs; of gather and scatter, those besides the indices
    function: str  # the card's tile operation, "" where the step's own name says it all
    start: float | None  # what a fold begins with
    parameters: int  # of a mean or a variance, the factor of the sum; -1: as many as its dimensions say
    cost: Cost
    reference: Callable[..., Any]

    @property
    def is_pointwise(self) -> bool:
        return self.kind == "pointwise"

    @property
    def is_reduction(self) -> bool:
        return self.kind == "reduction"

    @property
    def is_scan(self) -> bool:
        return self.kind == "scan"

    @property
    def is_matmul(self) -> bool:
        return self.kind == "matmul"

    @property
    def is_attention(self) -> bool:
        return self.kind == "attention"

    @property
    def is_paged(self) -> bool:
        return self.kind == "paged_attention"

    @property
    def has_indices(self) -> bool:
        return self.kind in ("gather", "scatter", "paged_attention")

    @property
    def is_iota(self) -> bool:
        return self.kind == "iota"

    @property
    def is_gather(self) -> bool:
        return self.kind == "gather"

    @property
    def is_scatter(self) -> bool:
        return self.kind == "scatter"

    @property
    def is_topk(self) -> bool:
        return self.kind == "topk"

    @property
    def is_product(self) -> bool:
        """Whether the matrix unit does it."""
        return self.unit == "pt"

    @property
    def is_move(self) -> bool:
        """Whether it only moves values, from any layout to any other."""
        return self.name in ("copy", "restickify")

    @property
    def is_dense(self) -> bool:
        """Whether it walks over all points of its operands, in an order that values do not decide."""
        return self.kind in ("pointwise", "reduction", "matmul", "attention")

    @property
    def folds_by_choice(self) -> bool:
        """Whether each op says how many dimensions it folds."""
        return self.kind in ("reduction", "argreduce")

    def is_table(self, position: int, last: int) -> bool:
        """Whether indices move this operand: the first one of a gather, the last one, which is the output, of a
        scatter, keys and values of paged attention."""
        if self.is_paged:
            return position in (1, 2)
        return (self.is_gather and position == 0) or (self.is_scatter and position == last)

    def jumps(self, position: int, last: int, indices: Sequence[T]) -> Sequence[T]:
        """Those of an op's indices that move this operand: all, but keys and values have one each."""
        if not self.is_table(position, last):
            return ()
        return indices[position - 1 : position] if self.is_paged else indices

    def parameter_count(self, sizes: Sequence[int]) -> int:
        """How many parameters it takes over loops of these sizes."""
        if self.is_paged:
            return paged_attention.FIXED_NUMBERS + 2 * sizes[paged_attention.REQUEST_LOOP] + 1
        return len(sizes) + 1 if self.parameters < 0 else self.parameters


def _folded(function: Callable[..., Tensor]) -> Callable[[Tensor, Sequence[int]], Tensor]:
    """A PyTorch reduction that takes one dimension at a time, over several."""

    def over(x: Tensor, dims: Sequence[int]) -> Tensor:
        for dim in sorted(dims, reverse=True):
            x = function(x, dim)
        return x

    return over


def _first(function: Callable[..., Tensor]) -> Callable[[Tensor, Sequence[int]], Tensor]:
    """argmax or argmin over several dimensions: the first position, in row-major order over them."""

    def over(x: Tensor, dims: Sequence[int]) -> Tensor:
        last = tuple(range(x.dim() - len(dims), x.dim()))
        return function(x.movedim(tuple(dims), last).flatten(x.dim() - len(dims)), -1)

    return over


def _iota(sizes: Sequence[int], start: float, *steps: float) -> Tensor:
    value = torch.full(tuple(sizes), float(start))
    for dim, step in enumerate(steps):
        value += step * torch.arange(sizes[dim]).view([-1 if i == dim else 1 for i in range(len(sizes))])
    return value


def _topk(which: int) -> Callable[[Tensor, int, float], Tensor]:
    return lambda x, k, largest: torch.topk(x, k, dim=-1, largest=bool(largest), sorted=True)[which]


def _scatter(reduce: Literal["prod", "amax", "amin"]) -> Callable[..., Tensor]:
    def scatter(table: Tensor, values: Tensor, *indices: Tensor) -> Tensor:
        out = table.clone()
        for point in torch.cartesian_prod(*map(torch.arange, indices[0].shape)).view(-1, indices[0].dim()):
            at = tuple(index[tuple(point)] for index in indices)
            combined = torch.stack([out[at], values[tuple(point)]])
            out[at] = combined.prod(0) if reduce == "prod" else getattr(combined, reduce)(0)
        return out

    return scatter


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | float, scale: float, causal: float, chooses: float
) -> Tensor:
    scores = (query.float() * scale) @ key.float().transpose(-2, -1)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    if isinstance(mask, Tensor):
        scores = torch.where(mask != 0, scores, -math.inf) if chooses else scores + mask.float()
    alone = (scores == -math.inf).all(-1, keepdim=True)  # a row that attends to nothing is 0
    return torch.where(alone, 0.0, scores.masked_fill(alone, 0.0).softmax(-1) @ value.float())


def _saturated(x: Tensor) -> Tensor:
    return x.double().nan_to_num(-math.inf).clamp(-(2.0**31), 2.0**31 - 1).to(torch.int64)


def _pointwise(name: str, arity: int, reference: Callable[..., Any], parameters: int = 0) -> OpRow:
    return OpRow(name, "pointwise", "sfp", arity, name, None, parameters, "stream", reference)


def _same(name: str) -> OpRow:
    """A tile operation of one input that PyTorch knows by the same name."""
    return _pointwise(name, 1, getattr(torch, name))


def _special(row: OpRow) -> OpRow:
    """A function that takes the vector unit longer than arithmetic does."""
    return replace(row, cost="special")


def _function(name: str) -> OpRow:
    return _special(_same(name))


def _same2(name: str) -> OpRow:
    return _pointwise(name, 2, getattr(torch, name))


def _fold(name: str, function: str, start: float, reference: Callable[..., Any], parameters: int = 0) -> OpRow:
    return OpRow(name, "reduction", "sfp", 1, function, start, parameters, "reduction", reference)


def _scan(name: str, function: str, start: float, reference: Callable[..., Any]) -> OpRow:
    return OpRow(name, "scan", "sfp", 1, function, start, 0, "order", reference)


_inf = math.inf
_SPECIAL_ONLY = ["erfcx", "log_ndtr", "i0e", "i1", "i1e"]  # that PyTorch has in torch.special alone

_ROWS = [
    # Arithmetic
    *map(_same2, ["add", "sub", "mul", "div", "hypot", "fmod", "remainder", "floor_divide"]),
    *map(_same, ["reciprocal", "sqrt", "rsqrt", "square", "neg", "abs", "sign"]),
    *map(_same, ["floor", "ceil", "round", "trunc", "frac"]),
    _pointwise("trunc_divide", 2, lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    _pointwise("lerp", 3, torch.lerp),
    _pointwise("fma", 3, lambda a, b, c: (a.double() * b.double() + c.double()).to(a.dtype)),
    # Exponentials, trigonometry, special functions
    *map(_function, ["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf", "erfc", "sigmoid"]),
    *map(_function, ["sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"]),
    *map(_function, ["erfinv", "lgamma", "digamma", "i0", "logit"]),
    *(_special(_pointwise(name, 1, getattr(torch.special, name))) for name in _SPECIAL_ONLY),
    *(_special(_same2(name)) for name in ["pow", "logaddexp", "atan2", "gcd"]),
    # Activations
    _same("relu"),
    _special(_pointwise("silu", 1, F.silu)),
    _special(_pointwise("gelu_none", 1, F.gelu)),
    _special(_pointwise("gelu_tanh", 1, lambda x: F.gelu(x, approximate="tanh"))),
    _special(_pointwise("softplus", 1, F.softplus, parameters=2)),
    _special(_pointwise("mish", 1, F.mish)),
    _special(_pointwise("elu", 1, F.elu, parameters=1)),
    _pointwise("leaky_relu", 1, F.leaky_relu, parameters=1),
    _pointwise("hardswish", 1, F.hardswish),
    _pointwise("hardsigmoid", 1, F.hardsigmoid),
    _pointwise("hardtanh", 1, F.hardtanh, parameters=2),
    # Order and choice
    *map(_same2, ["maximum", "minimum", "fmax", "fmin", "copysign"]),
    *map(_same2, ["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"]),
    *map(_same, ["isnan", "isinf", "isfinite", "logical_not"]),
    _pointwise("clamp", 1, torch.clamp, parameters=2),
    _pointwise("nan_to_num", 1, torch.nan_to_num, parameters=3),
    _pointwise("where", 3, lambda condition, a, b: torch.where(condition != 0, a, b)),
    # Bits
    *map(_same2, ["bitwise_and", "bitwise_or", "bitwise_xor"]),
    _same("bitwise_not"),
    _pointwise("shift_left", 2, torch.bitwise_left_shift),
    _pointwise("shift_right", 2, torch.bitwise_right_shift),
    # Moves and casts
    _pointwise("copy", 1, torch.clone),
    _pointwise("to_integer", 1, _saturated),
    _pointwise("to_int32", 1, lambda x: x.to(torch.int32)),
    _pointwise("to_real", 1, lambda x: x.to(torch.float32)),
    OpRow("restickify", "pointwise", "sfp", 1, "", None, 0, "restickify", torch.clone),
    # Folds
    _fold("sum", "add", 0.0, lambda x, dims: torch.sum(x, tuple(dims))),
    _fold("mean", "add", 0.0, lambda x, dims: torch.mean(x, tuple(dims)), parameters=1),
    _fold("wide_sum", "wide_add", 0.0, lambda x, dims: torch.sum(x.double(), tuple(dims)).to(x.dtype)),
    _fold("wide_mean", "wide_add", 0.0, lambda x, dims: torch.mean(x.double(), tuple(dims)).to(x.dtype), parameters=1),
    _fold("variance", "variance", 0.0, lambda x, dims: torch.var(x, tuple(dims), correction=0), parameters=1),
    _fold("amax", "maximum", -_inf, lambda x, dims: torch.amax(x, tuple(dims))),
    _fold("amin", "minimum", _inf, lambda x, dims: torch.amin(x, tuple(dims))),
    _fold("prod", "mul", 1.0, _folded(torch.prod)),
    _fold("any", "logical_or", 0.0, _folded(torch.any)),
    _fold("all", "logical_and", 1.0, _folded(torch.all)),
    OpRow("argmax", "argreduce", "sfp", 1, "argmax", None, 0, "reduction", _first(torch.argmax)),
    OpRow("argmin", "argreduce", "sfp", 1, "argmin", None, 0, "reduction", _first(torch.argmin)),
    _scan("cumsum", "add", 0.0, torch.cumsum),
    _scan("cumprod", "mul", 1.0, torch.cumprod),
    _scan("cummax_value", "maximum", -_inf, lambda x, dim: torch.cummax(x, dim).values),
    _scan("cummin_value", "minimum", _inf, lambda x, dim: torch.cummin(x, dim).values),
    _scan("cummax_index", "argmax", 0.0, lambda x, dim: torch.cummax(x, dim).indices),
    _scan("cummin_index", "argmin", 0.0, lambda x, dim: torch.cummin(x, dim).indices),
    _scan("logcumsumexp", "logaddexp", -_inf, torch.logcumsumexp),
    OpRow("topkvalue", "topk", "sfp", 1, "topkvalue", None, 1, "order", _topk(0)),
    OpRow("topkindex", "topk", "sfp", 1, "topkindex", None, 1, "order", _topk(1)),
    # Matrices
    OpRow("matmul", "matmul", "pt", 2, "", 0.0, 0, "matmul", torch.matmul),
    OpRow("attention", "attention", "pt", 4, "", None, 3, "attention", _attention),
    OpRow("paged_attention", "paged_attention", "pt", 5, "", None, -1, "attention", paged_attention.of_step),
    # Positions
    OpRow("iota", "iota", "sfp", 0, "", None, -1, "stream", _iota),
    OpRow("gather", "gather", "sfp", 1, "", None, 0, "indirect", lambda table, *at: table[at]),
    OpRow("scatter", "scatter", "sfp", 1, "copy", None, 0, "indirect", lambda t, v, *at: t.index_put(at, v)),
    OpRow("scatter_add", "scatter", "sfp", 1, "add", None, 0, "indirect", lambda t, v, *at: t.index_put(at, v, True)),
    OpRow("scatter_mul", "scatter", "sfp", 1, "mul", None, 0, "indirect", _scatter("prod")),
    OpRow("scatter_amax", "scatter", "sfp", 1, "maximum", None, 0, "indirect", _scatter("amax")),
    OpRow("scatter_amin", "scatter", "sfp", 1, "minimum", None, 0, "indirect", _scatter("amin")),
]

OPS: dict[str, OpRow] = {row.name: row for row in _ROWS}
